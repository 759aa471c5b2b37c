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
    let lines = "a: 1\n".to_owned() + &deep;
    for (name, content, said) in [
        ("a.yaml", &lines, "a.yaml:2: more than 500 brackets open at a time"),
        ("a.json", &deep, "recursion limit exceeded"),
        ("b.yaml", &("[".repeat(300) + &"]".repeat(300)), "recursion limit exceeded"),
    ] {
        let found = problems(name, content);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(said), "{}", found[0]);
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

#[test]
fn a_flood_of_problems_is_cut_short_and_counted() {
    let unknown: String = (0..20_000).map(|n| format!("  field{n}: 1\n")).collect();
    let text =
        "apiVersion: kinference.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: a}\nspec:\n".to_string() + &unknown;
    let found = problems("a.yaml", &text);
    assert_eq!(found.len(), MAX_DOCUMENT_PROBLEMS + 1, "{found:?}");
    assert!(
        found.last().unwrap().ends_with(" more problems from here on (they show when some of the others are solved)")
    );
    let many: String = (0..2_000).map(|n| provider(&format!("p{n}")).replace("name: m", "nam: m") + "---\n").collect();
    assert_eq!(problems("a.yaml", &many).len(), MAX_PROBLEMS + 1);
}

#[test]
fn no_cut_and_no_wrong_byte_makes_it_panic() {
    let whole = include_str!("all.yaml").as_bytes();
    let load = |content: Vec<u8>| load_files(vec![SourceFile { path: "a.yaml".into(), content }]);
    let mut refused = 0;
    for at in (0..whole.len()).step_by(29) {
        refused += usize::from(load(whole[..at].to_vec()).is_err());
        for byte in [0, b'"', b'{', b'-', b':', b'*', b'\n', 0xff] {
            let mut content = whole.to_vec();
            content[at] = byte;
            refused += usize::from(load(content).is_err());
        }
    }
    assert!(refused > whole.len() / 29, "{refused}");
}

#[test]
fn too_many_static_workers_are_refused_at_once() {
    let workers: String =
        (0..1025).map(|n| format!("{{name: w{n}, address: 10.0.{}.{}}}, ", n / 256, n % 256)).collect();
    let text = format!(
        "apiVersion: kinference.dev/v1alpha1\nkind: InferenceWorkerSet\nmetadata: {{name: a}}\nspec:\n  \
         model: {{name: m, tokenizer: {{path: x}}}}\n  workers: {{dataParallelSize: 256, static: [{workers}]}}\n"
    );
    assert_eq!(
        problems("a.yaml", &text),
        ["a.yaml:6: spec.workers.static: 1025 workers, where 1024 are the most (make several worker sets of them)"]
    );
}
