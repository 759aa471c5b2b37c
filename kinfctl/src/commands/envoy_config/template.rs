//! Fills in a template.

use anyhow::{Result, bail};

/// Replaces every `@NAME@` of the template by its value. The lines of a value of several lines, or of none, take the
/// place's indentation; a line that holds nothing but an empty value is left out. Values are not searched again.
pub(super) fn fill(template: &str, values: &[(&str, String)]) -> Result<String> {
    let mut result = String::with_capacity(template.len() * 2);
    for line in template.lines() {
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        let (filled, had_value) = fill_line(line, values)?;
        if had_value && filled.trim().is_empty() {
            continue;
        }
        for (number, part) in filled.lines().enumerate() {
            if number > 0 && !part.is_empty() {
                result.push_str(&indent);
            }
            result.push_str(part);
            result.push('\n');
        }
        if filled.is_empty() {
            result.push('\n');
        }
    }
    Ok(result)
}

fn fill_line(line: &str, values: &[(&str, String)]) -> Result<(String, bool)> {
    let mut result = String::new();
    let mut rest = line;
    let mut had_value = false;
    while let Some((before, tail)) = rest.split_once('@') {
        let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
        result.push_str(before);
        match tail.split_once('@') {
            Some((name, after)) if !name.is_empty() && name.chars().all(is_name) => {
                let Some((_, value)) = values.iter().find(|(known, _)| *known == name) else {
                    bail!("the template asks for {name}, which is unknown");
                };
                result.push_str(value.trim_end_matches('\n'));
                had_value = true;
                rest = after;
            }
            _ => {
                result.push('@');
                rest = tail;
            }
        }
    }
    result.push_str(rest);
    Ok((result, had_value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_take_their_place_and_its_indentation() {
        let values = [("A", "1".to_string()), ("LINES", "x:\n  y: '@A@'\n".into()), ("NONE", String::new())];
        let filled = fill("a: @A@\n\"@type\": b\nlist:\n  @LINES@\n  @NONE@\nend\n\nmore", &values).unwrap();
        assert_eq!(filled, "a: 1\n\"@type\": b\nlist:\n  x:\n    y: '@A@'\nend\n\nmore\n");
        assert!(fill("@B@", &values).is_err());
    }
}
