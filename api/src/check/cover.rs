//! Which conditions are wider than others.

use kinference_routing::policy::glob;

use crate::kinds::{TagCondition, When};

/// True when `wide` matches every request that `narrow` matches. Errs towards false.
pub(super) fn covers(wide: Option<&When>, narrow: Option<&When>) -> bool {
    let Some(wide) = wide else { return true };
    let nothing = When::default();
    let narrow = narrow.unwrap_or(&nothing);
    globs(wide.tenants.as_deref(), narrow.tenants.as_deref())
        && globs(wide.models.as_deref(), narrow.models.as_deref())
        && tags(wide.tags.as_ref(), narrow.tags.as_ref())
        && wide.pools.iter().flatten().all(|condition| narrow.pools.iter().flatten().any(|other| other == condition))
}

/// A `*` of the narrow glob, taken as a character, can only be matched by a `*` of the wide one, which then matches
/// whatever stands for it.
fn globs(wide: Option<&[String]>, narrow: Option<&[String]>) -> bool {
    let Some(wide) = wide else { return true };
    match narrow {
        None => wide.iter().any(|glob| glob == "*"),
        Some(narrow) => narrow.iter().all(|narrow| glob::any(wide, narrow)),
    }
}

fn tags(wide: Option<&TagCondition>, narrow: Option<&TagCondition>) -> bool {
    let Some(wide) = wide else { return true };
    let nothing = TagCondition::default();
    let narrow = narrow.unwrap_or(&nothing);
    let any = wide.any.is_empty()
        || narrow.all.iter().any(|tag| wide.any.contains(tag))
        || (!narrow.any.is_empty() && narrow.any.iter().all(|tag| wide.any.contains(tag)));
    any && wide.all.iter().all(|tag| narrow.all.contains(tag)) && wide.none.iter().all(|tag| narrow.none.contains(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn when(text: &str) -> Option<When> {
        (!text.is_empty()).then(|| serde_yaml_ng::from_str(text).unwrap())
    }

    #[test]
    fn wider_conditions_cover_narrower_ones() {
        for (wide, narrow, expected) in [
            ("", "", true),
            ("", "{models: [a]}", true),
            ("{models: [a]}", "", false),
            ("{models: ['*']}", "", true),
            ("{models: [a, b]}", "{models: [a]}", true),
            ("{models: [a]}", "{models: [a, b]}", false),
            ("{models: ['a*']}", "{models: ['ab*']}", true),
            ("{models: ['ab*']}", "{models: ['a*']}", false),
            ("{models: ['a*']}", "{models: ['*a']}", false),
            ("{models: [a]}", "{models: [a], tags: {any: [x]}}", true),
            ("{models: [a], tags: {any: [x]}}", "{models: [a]}", false),
            ("{tags: {any: [x, y]}}", "{tags: {all: [x, z]}}", true),
            ("{tags: {any: [x, y]}}", "{tags: {any: [x, z]}}", false),
            ("{tags: {all: [x]}}", "{tags: {any: [x]}}", false),
            ("{tags: {none: [x]}}", "{tags: {none: [x, y]}}", true),
            ("{tags: {none: [x]}}", "{}", false),
            ("{tenants: [t]}", "{tenants: [t], models: [a]}", true),
            (
                "{pools: [{name: g, signal: QueuedRequests, max: '1'}]}",
                "{pools: [{name: g, signal: QueuedRequests, max: '1'}], models: [a]}",
                true,
            ),
            (
                "{pools: [{name: g, signal: QueuedRequests, max: '1'}]}",
                "{pools: [{name: g, signal: QueuedRequests, max: '2'}]}",
                false,
            ),
        ] {
            assert_eq!(covers(when(wide).as_ref(), when(narrow).as_ref()), expected, "{wide} / {narrow}");
        }
    }
}
