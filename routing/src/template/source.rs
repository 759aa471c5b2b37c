//! What a template's source tells before it runs: which form of content it wants.

/// How a template reads messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// It loops over a message's content, so content is a list of parts.
    pub(super) lists_content: bool,
    /// It knows the role `developer`.
    pub(super) names_developer: bool,
}

impl Shape {
    /// Reads the statements of a template. vLLM looks at Jinja's syntax tree for the same: a loop over `x.content` or
    /// `x['content']`, or over a variable that was set to it.
    pub(super) fn of(source: &str) -> Self {
        let mut aliases: Vec<&str> = Vec::new();
        let mut lists_content = false;
        for statement in statements(source) {
            if let Some((name, value)) = statement.strip_prefix("set ").and_then(|rest| rest.split_once('=')) {
                if is_content(value, &aliases) {
                    aliases.push(name.trim());
                }
            } else if let Some((_, iterated)) = statement.strip_prefix("for ").and_then(|rest| rest.split_once(" in "))
            {
                lists_content |= is_content(iterated, &aliases);
            }
        }
        Self { lists_content, names_developer: source.contains("developer") }
    }
}

/// The expression is a message's content, perhaps filtered or under a condition.
fn is_content(expression: &str, aliases: &[&str]) -> bool {
    let end =
        expression.find(['|', ' ', '\n']).filter(|end| !expression.get(..*end).unwrap_or_default().trim().is_empty());
    let trimmed = expression.trim_start();
    let subject = match end {
        Some(_) => trimmed.split(['|', ' ', '\n']).next().unwrap_or_default(),
        None => trimmed.trim_end(),
    };
    subject.ends_with(".content")
        || subject.ends_with("['content']")
        || subject.ends_with("[\"content\"]")
        || aliases.contains(&subject)
}

/// The insides of `{% ... %}`, without the marks of white space control.
fn statements(source: &str) -> impl Iterator<Item = &str> {
    source.split("{%").skip(1).filter_map(|rest| {
        let (inside, _) = rest.split_once("%}")?;
        Some(inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim())
    })
}

/// Hugging Face's `{% generation %}` blocks mark text for training and render as what they contain.
pub(super) fn without_generation_tags(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let mut result = String::with_capacity(source.len());
    let mut pieces = source.split("{%");
    result.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        result.push_str("{%");
        match piece.split_once("%}") {
            Some((inside, after)) => {
                let replaced = match inside.trim_matches(['-', '+', ' ', '\n']) {
                    "generation" => inside.replace("generation", "if true"),
                    "endgeneration" => inside.replace("endgeneration", "endif"),
                    _ => inside.to_owned(),
                };
                result.push_str(&replaced);
                result.push_str("%}");
                result.push_str(after);
            }
            None => result.push_str(piece),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_content_is_found() {
        for source in [
            "{%- for part in message.content -%}",
            "{% for c in m['content'] | selectattr('type') %}",
            "{% set content = message.content %}{%- for x in content if x %}",
        ] {
            assert!(Shape::of(source).lists_content, "{source}");
        }
        for source in ["{% for m in messages %}{{ m.content }}{% endfor %}", "{% set a = m.content %}{% for x in b %}"]
        {
            assert!(!Shape::of(source).lists_content, "{source}");
        }
    }

    #[test]
    fn generation_blocks_are_transparent() {
        assert_eq!(
            without_generation_tags(
                "a{%- generation -%}b{% endgeneration %}{% if add_generation_prompt %}c{% endif %}"
            ),
            "a{%- if true -%}b{% endif %}{% if add_generation_prompt %}c{% endif %}"
        );
    }
}
