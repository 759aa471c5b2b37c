//! What Python prints: `json.dumps` for the `tojson` filter, and `str()` for values that a template writes out.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

/// `tojson` as Hugging Face and vLLM define it: `json.dumps(x, ensure_ascii=False, indent=…, separators=…, sort_keys=…)`.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let writer = Json { indent, item, key, sort_keys: sort_keys.unwrap_or(false) };
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(out)
}

struct Json {
    indent: Option<usize>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// Deepest nesting that is written.
const DEPTH: usize = 128;

impl Json {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply for tojson"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(keys, depth, ['{', '}'], out, |name, out| {
                    match name.as_str() {
                        Some(text) => string(text, out),
                        None => string(&python_str(name), out),
                    }
                    out.push_str(&self.key);
                    self.write(&value.get_item(name)?, depth + 1, out)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect();
                self.list(items, depth, ['[', ']'], out, |item, out| self.write(item, depth + 1, out))?;
            }
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "value has no JSON form")),
        }
        Ok(())
    }

    fn list(
        &self,
        items: Vec<Value>,
        depth: usize,
        [open, close]: [char; 2],
        out: &mut String,
        mut each: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            self.line(depth + 1, out);
            each(item, out)?;
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

/// A JSON string as Python writes it without escaping beyond ASCII.
fn string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python's `repr` writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        // Rust writes 1e16 and 1.5e-7, Python 1e+16 and 1.5e-07.
        let text = format!("{float:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let text = float.to_string();
    if text.contains('.') { text } else { format!("{text}.0") }
}

/// `str(value)` in Python.
fn python_str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::new();
            repr(value, 0, &mut out);
            out
        }
    }
}

fn repr(value: &Value, depth: usize, out: &mut String) {
    let items = |out: &mut String, [open, close]: [&str; 2], each: &dyn Fn(&Value, &mut String)| {
        out.push_str(open);
        for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            each(&item, out);
        }
        out.push_str(close);
    };
    match value.kind() {
        _ if depth > DEPTH => out.push_str("..."),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            out.push(quote);
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote => out.extend(['\\', c]),
                    c => out.push(c),
                }
            }
            out.push(quote);
        }
        ValueKind::Seq | ValueKind::Iterable => items(out, ["[", "]"], &|item, out| repr(item, depth + 1, out)),
        ValueKind::Map => items(out, ["{", "}"], &|name, out| {
            repr(name, depth + 1, out);
            out.push_str(": ");
            repr(&value.get_item(name).unwrap_or_default(), depth + 1, out);
        }),
        _ => out.push_str(&value.to_string()),
    }
}

/// Writes a value as Jinja2 does: `str()` of it, and nothing for an undefined one.
pub(super) fn format(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Ok(());
    }
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python_str(value)),
    };
    written.map_err(Error::from)
}
