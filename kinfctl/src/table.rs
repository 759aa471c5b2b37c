//! Columns that line up.

use kinference_api::plain;

/// Lays out rows under a header, two spaces between columns; every line starts with `indent`. Widths are those of the
/// plain text, so that `style` may add what takes no room. Control characters in cells are escaped.
pub(crate) fn lay_out(
    indent: &str,
    header: &[&str],
    rows: &[Vec<String>],
    style: impl Fn(Option<usize>, &str) -> String,
) -> String {
    let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(header.get(column).map_or(0, |title| title.len()))
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>, is_header: bool| {
        let last = cells.len().saturating_sub(1);
        let mut line = indent.to_string();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            line.push_str(&style((!is_header).then_some(column), cell));
            if column < last {
                line.push_str(&" ".repeat(width - cell.chars().count() + 2));
            }
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    let mut text = line(header.to_vec(), true);
    for row in &rows {
        text.push_str(&line(row.iter().map(AsRef::as_ref).collect(), false));
    }
    text
}
