//! Plain tables.

/// A table: a header line, then rows. The first column is aligned left, the others right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// A table with its header.
    pub fn new(header: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { lines: vec![header.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }

    /// Adds an empty line.
    pub fn gap(&mut self) {
        self.lines.push(Vec::new());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for (at, line) in self.lines.iter().enumerate() {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
            if at == 0 {
                writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1)))?;
            }
        }
        Ok(())
    }
}

/// A table of names and values.
pub fn rows(title: &str, unit: &str, list: impl IntoIterator<Item = (String, String)>) -> Table {
    let mut table = Table::new([title, unit]);
    list.into_iter().for_each(|(name, value)| table.row([name, value]));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["arm", "p50", "p95"]);
        table.row(["kinference", "1", "22"]);
        table.gap();
        table.row(["random", "333", "4"]);
        let text = table.to_string();
        assert_eq!(text, "arm         p50  p95\n--------------------\nkinference    1   22\n\nrandom      333    4\n");
    }
}
