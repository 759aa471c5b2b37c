//! The conditions of every resource, and what is wrong where one is not as it should be.

use super::report::clean;
use crate::paint::Paint;
use crate::status::{Condition, Resource};
use crate::table::lay_out;

/// The resources after an empty line and a title; nothing when there are none.
pub(super) fn table(resources: &[Resource], paint: Paint) -> String {
    if resources.is_empty() {
        return String::new();
    }
    let row = |resource: &Resource| {
        let conditions: Vec<String> = resource.conditions.iter().map(gist).collect();
        vec![clean(&resource.kind), clean(&resource.name), clean(&conditions.join(", "))]
    };
    let rows: Vec<Vec<String>> = resources.iter().map(row).collect();
    let mut text = format!("\n{}\n", paint.bold("resources"));
    text.push_str(&lay_out("  ", &["KIND", "NAME", "CONDITIONS"], &rows, |column, cell| match (column, cell) {
        (None, title) => paint.dim(title),
        (Some(2), cell) => cell.split(", ").map(|one| painted(one, paint)).collect::<Vec<_>>().join(", "),
        (Some(_), cell) => cell.to_string(),
    }));
    for resource in resources {
        let wrong = resource.conditions.iter().filter(|condition| condition.status == "False");
        for condition in wrong {
            let (kind, name) = (clean(&resource.kind), clean(&resource.name));
            let line = format!("  {kind} {name} {}: {}", clean(&condition.kind), clean(&condition.message));
            text.push_str(&paint.yellow(&line));
            text.push('\n');
        }
    }
    text
}

fn gist(condition: &Condition) -> String {
    match condition.status.as_str() {
        "True" => condition.kind.clone(),
        "False" => format!("not {} ({})", condition.kind, condition.reason),
        _ => format!("{} unknown ({})", condition.kind, condition.reason),
    }
}

fn painted(gist: &str, paint: Paint) -> String {
    if gist.starts_with("not ") {
        paint.red(gist)
    } else if gist.contains(" unknown ") {
        paint.yellow(gist)
    } else {
        paint.green(gist)
    }
}
