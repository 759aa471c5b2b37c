use super::*;
use crate::openai::{Endpoint, Prompt, parse};

const CHATML: &str = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

fn render_with(source: &str, body: &str) -> Result<String, TemplateError> {
    let special = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    let template = ChatTemplate::compile(source, &special)?;
    let request = parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    let Prompt::Chat(chat) = &request.prompt else { panic!("not a chat") };
    template.render(chat, 1_709_210_096)
}

fn render(source: &str, body: &str) -> String {
    render_with(source, body).unwrap()
}

fn body(messages: &str) -> String {
    format!(r#"{{"model":"m","messages":{messages}}}"#)
}

#[test]
fn chatml_is_rendered_as_the_engine_does() {
    let body = body(
        r#"[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#,
    );
    assert_eq!(
        render(CHATML, &body),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn options_of_the_request_reach_the_template() {
    let source = "{{ bos_token }}{% if enable_thinking is defined and not enable_thinking %}<quiet>{% endif %}{% if not add_generation_prompt %}end{% endif %}";
    let with = |more: &str| render(source, &format!(r#"{{"model":"m","messages":[],{more}}}"#));
    assert_eq!(with(r#""add_generation_prompt":false"#), "<s>end");
    assert_eq!(with(r#""chat_template_kwargs":{"enable_thinking":false}"#), "<s><quiet>");
    assert_eq!(with(r#""reasoning_effort":"none""#), "<s><quiet>");
    assert_eq!(with(r#""reasoning_effort":"high""#), "<s>");
}

#[test]
fn content_is_a_list_for_templates_that_loop_over_it() {
    let source = "{% for m in messages %}{% for part in m['content'] %}[{{ part.type }}:{{ part.text }}]{% endfor %}{% endfor %}";
    assert_eq!(
        render(source, &body(r#"[{"role":"user","content":"x"},{"role":"user","content":["y","z"]}]"#)),
        "[text:x][text:y][text:z]"
    );
}

#[test]
fn tools_are_rendered_as_pydantic_and_json_dumps_write_them() {
    let source = "{% for t in tools %}{{ t | tojson }}\n{% endfor %}";
    let body = r#"{"model":"m","messages":[],"tools":[{"function":{"parameters":{"b":1.0,"a":[1,2],"é<&>'":"\u00e9\n"},"name":"f","strict":true},"type":"function","x":1}]}"#;
    assert_eq!(
        render(source, body),
        "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": {\"b\": 1.0, \"a\": [1, 2], \"é<&>'\": \"é\\n\"}}}\n"
    );
    let indented = "{{ tools[0].function.parameters | tojson(indent=2) }}";
    let body = r#"{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":{},"b":[1]}}}]}"#;
    assert_eq!(render(indented, body), "{\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n}");
}

#[test]
fn numbers_are_written_as_python_does() {
    let source = "{{ tools[0].function.parameters | tojson }} {{ tools[0].function.parameters.list }}";
    let body = r#"{"model":"m","messages":[],"tools":[{"function":{"parameters":{"list":[1e16,1.5e-7,0.1,100000.0,-3,9007199254740993,1e5,true,null,"it's"]}}}]}"#;
    assert_eq!(
        render(source, body),
        "{\"list\": [1e+16, 1.5e-07, 0.1, 100000.0, -3, 9007199254740993, 100000.0, true, null, \"it's\"]} \
         [1e+16, 1.5e-07, 0.1, 100000.0, -3, 9007199254740993, 100000.0, True, None, \"it's\"]"
    );
}

#[test]
fn tool_calls_have_their_arguments_parsed_and_empty_ones_are_dropped() {
    let source = "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.function.arguments.items() | list | length }}{% endfor %}{% else %}none{% endif %};{% endfor %}";
    let body = body(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1, \"y\": \"z\"}"}},{"function":{"name":"g","arguments":"oops"}}]},{"role":"assistant","content":"x","tool_calls":[]}]"#,
    );
    assert_eq!(render(source, &body), "f{\"x\": 1, \"y\": \"z\"}2g{}0;none;");
}

#[test]
fn developer_messages_become_system_messages_unless_the_template_knows_them() {
    let messages =
        r#"[{"role":"system","content":"a"},{"role":"developer","content":"b"},{"role":"user","content":"c"}]"#;
    assert_eq!(
        render("{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}", &body(messages)),
        "system=a\nb;user=c;"
    );
    assert_eq!(
        render("{# developer #}{% for m in messages %}{{ m.role }};{% endfor %}", &body(messages)),
        "system;developer;user;"
    );
}

#[test]
fn white_space_is_controlled_as_in_jinja2() {
    let source = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n";
    assert_eq!(render(source, &body(r#"[{"role":"user","content":"x"},{"role":"user","content":"y"}]"#)), "x\ny\n");
}

#[test]
fn python_methods_loops_and_dates_work() {
    let source = "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% if loop.index0 == 1 %}{% break %}{% endif %}{% set ns.n = ns.n + 1 %}{{ m.content.strip().split('-')[-1] }}{{ m.get('name', 'nobody') }}{% endfor %}{{ ns.n }} {{ strftime_now('%d %b %Y') }}";
    assert_eq!(
        render(source, &body(r#"[{"role":"user","content":"x"},{"role":"user","content":" a-b "}]"#)),
        "bnobody1 29 Feb 2024"
    );
}

#[test]
fn what_is_not_known_is_opaque() {
    let image = body(r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]"#);
    assert_eq!(render_with(CHATML, &image), Err(TemplateError::Opaque));
    let own = r#"{"model":"m","messages":[],"chat_template":"x"}"#;
    assert_eq!(render_with(CHATML, own), Err(TemplateError::Opaque));
    assert_eq!(render_with(CHATML, r#"{"model":"m","messages":7}"#), Err(TemplateError::Opaque));
}

#[test]
fn errors_name_the_place_and_quote_no_message() {
    let error = render_with(
        "{{ raise_exception('bad: ' + messages[0].content) }}",
        &body(r#"[{"role":"user","content":"secret"}]"#),
    );
    let Err(TemplateError::Render(reason)) = error else { panic!("{error:?}") };
    assert!(reason.contains("line 1") && !reason.contains("secret"), "{reason}");
    assert!(matches!(ChatTemplate::compile("{% if %}", &BTreeMap::new()), Err(TemplateError::Compile(_))));
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let source = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(render_with(source, &body("[]")), Err(TemplateError::Render(_))));
    let recursive = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(matches!(render_with(recursive, &body("[]")), Err(TemplateError::Render(_))));
}

/// Text with `|string` and `~` goes through the engine's own conversion.
#[test]
fn booleans_print_as_in_python() {
    assert_eq!(render("{{ true }} {{ none }} {{ 1.0 }} {{ missing }}|", &body("[]")), "True None 1.0 |");
}
