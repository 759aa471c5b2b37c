use super::*;

#[test]
fn aliases_that_multiply_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{below}]\n");
    }
    let found = problems("bomb.yaml", &bomb);
    assert_eq!(found.len(), 1, "{found:?}");
    let refused = found[0].contains("more than 1000000 values") || found[0].contains("repetition limit exceeded");
    assert!(refused, "{}", found[0]);
}

#[test]
fn aliases_that_square_are_refused() {
    let list = "x, ".repeat(20_000);
    let again = "*a, ".repeat(20_000);
    let found = problems("square.yaml", &format!("a: &a [{list}]\nb: [{again}]\n"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("more than 1000000 values"), "{}", found[0]);
}

#[test]
fn modest_aliases_are_fine() {
    let text = provider("a").replace("spec: {", "spec: &s {") + "---\n" + &provider("b");
    assert_eq!(problems("a.yaml", &text), [""; 0]);
    let text = provider("a").replace("models: [{name: m}]", "models: [&m {name: m}, {<<: *m, name: n}]");
    assert_eq!(
        problems("a.yaml", &text),
        ["a.yaml:4: spec.models[1][\"<<\"]: YAML merge keys are not supported (write the fields out)"]
    );
}

#[test]
fn depth_is_bounded_in_both_languages() {
    let deep = "[".repeat(20_000) + &"]".repeat(20_000);
    for name in ["a.yaml", "a.json"] {
        let found = problems(name, &deep);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("recursion limit exceeded"), "{}", found[0]);
    }
}

#[test]
fn large_files_are_refused_and_large_enough_ones_are_read() {
    let padding = "# ".to_string() + &"x".repeat(MAX_FILE_BYTES as usize);
    assert_eq!(problems("a.yaml", &padding), ["a.yaml: larger than 4 MiB (split it into several files)"]);
    let folder = Folder::new("large");
    folder.write("a.yaml", &padding);
    let Err(Problems(found)) = load(std::slice::from_ref(&folder.0)) else {
        panic!("loaded");
    };
    assert_eq!(found[0].message, "larger than 4 MiB");
    let many: String = (0..5_000).map(|n| provider(&format!("p{n}")) + "---\n").collect();
    let resources = load_files(vec![file("a.yaml", &many)]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(resources.providers.len(), 5_000);
}

#[test]
fn what_is_no_utf8_is_told_with_its_line() {
    let mut content = provider("a").into_bytes();
    content.extend(b"# caf\xe9\n");
    let path = PathBuf::from("a.yaml");
    let Err(problems) = load_files(vec![SourceFile { path, content }]) else {
        panic!("loaded");
    };
    assert_eq!(problems.to_string(), "a.yaml:5: not UTF-8 (save the file as UTF-8)");
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_fine() {
    let text = format!("\u{feff}---\n{}", provider("a")).replace('\n', "\r\n");
    assert_eq!(problems("a.yaml", &text), [""; 0]);
    let text = format!("\u{feff}{}", provider("a"));
    assert_eq!(problems("a.yaml", &text), [""; 0]);
}
