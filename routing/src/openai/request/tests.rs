use super::super::{Content, Part, splice_model};
use super::*;

fn chat(body: &str) -> (Request<'_>, Chat<'_>) {
    let request = parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    let Prompt::Chat(chat) = request.prompt.clone() else { panic!("not a chat") };
    (request, *chat)
}

#[test]
fn a_chat_request_is_read() {
    let body = r#"{"model":"tiny","stream":true,"stream_options":{"include_usage":true},"cache_salt":"s",
        "messages":[{"role":"system","content":"a\"b"},{"role":"user","content":[{"type":"text","text":"x"},"y"]}],"tools":null,"temperature":0.1}"#;
    let (request, chat) = chat(body);
    assert_eq!(request.model.name, "tiny");
    assert_eq!(&body[request.model.span.clone()], "\"tiny\"");
    assert!(request.stream && request.include_usage && chat.tools.is_none() && chat.add_generation_prompt);
    assert_eq!(request.cache_salt.as_deref(), Some("s"));
    let Messages::List(messages) = chat.messages else { panic!("unknown") };
    assert!(matches!(&messages[0].content, Content::Text(text) if text == "a\"b"));
    assert!(
        matches!(&messages[1].content, Content::Parts(parts) if parts.len() == 2 && matches!(&parts[1], Part::Text(text) if text == "y"))
    );
}

#[test]
fn the_model_is_spliced_and_nothing_else() {
    let body = r#"{ "z":9007199254740993,"model" : "a\u0062","t":1.0,"x":"<&>\u00e9","model":"last" ,"tools":[{"b":1,"a":2}]}"#;
    let request = parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    assert_eq!(request.model.name, "last");
    let spliced = splice_model(body.as_bytes(), std::slice::from_ref(&request.model.span), "new \"name\"");
    assert_eq!(std::str::from_utf8(&spliced).unwrap(), body.replace("\"last\"", r#""new \"name\"""#));
}

#[test]
fn every_value_that_some_parser_takes_for_the_model_is_known() {
    let body = r#"{"model":"first","MODEL":7,"m":{"model":"inner"},"mod\u0065l":"last"}"#;
    let request = parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    assert_eq!(request.model.name, "last");
    let spliced = splice_model(body.as_bytes(), &request.model.spans, "new");
    let expected = r#"{"model":"new","MODEL":"new","m":{"model":"inner"},"mod\u0065l":"new"}"#;
    assert_eq!(std::str::from_utf8(&spliced).unwrap(), expected);
    let many = format!("{{{}\"model\":\"m\"}}", "\"model\":\"m\",".repeat(1000));
    assert!(parse(Endpoint::ChatCompletions, many.as_bytes()).is_err());
    assert!(matches!(parse(Endpoint::ChatCompletions, br#"{"Model":"m"}"#), Err(RequestError::NoModel)));
}

#[test]
fn a_prompt_of_too_many_values_is_unknown_and_the_rest_is_read() {
    let many = ["0,".repeat(200_000) + "0", "{},".repeat(200_000) + "{}", "\"\",".repeat(200_000) + "\"\""];
    for list in &many {
        for field in [
            format!(r#""tools":[{list}]"#),
            format!(r#""documents":[{list}]"#),
            format!(r#""messages":[{{"role":"user","content":[{list}]}}]"#),
            format!(r#""messages":[{{"role":"user","content":"x","tool_calls":[{list}]}}]"#),
        ] {
            let body = format!(r#"{{{field},"model":"m","stream":true,"stream_options":{{"include_usage":true}}}}"#);
            let request = parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
            assert!(matches!(request.prompt, Prompt::Opaque), "{}", &field[..40]);
            assert!(request.stream && request.include_usage);
        }
    }
    let messages = r#"{"role":"a"},"#.repeat(200_000);
    let body = format!(r#"{{"model":"m","messages":[{messages}{{"role":"a"}}]}}"#);
    let Prompt::Opaque = parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap().prompt else { panic!("kept") };
    let (large, text) = ("x".repeat(9 << 20), "x".repeat(1 << 20));
    for (text, known) in [(large, false), (text, true)] {
        let body = format!(r#"{{"model":"m","prompt":"{text}","stream":true}}"#);
        let request = parse(Endpoint::Completions, body.as_bytes()).unwrap();
        assert_eq!((matches!(request.prompt, Prompt::Text(_)), request.stream), (known, true));
    }
}

#[test]
fn bad_bodies_are_refused_with_a_reason_that_quotes_nothing() {
    let parse = |body: &str| parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap_err().to_string();
    assert_eq!(parse(" \n"), "the request body is empty; send a JSON object");
    assert_eq!(parse("[1]"), "the request body is not a valid JSON object: not an object at line 1 column 0");
    assert_eq!(
        parse(r#"{"model":"a","messages":"secret"#),
        "the request body is not a valid JSON object: it ends early at line 1 column 31"
    );
    assert_eq!(
        parse(r#"{"model":"a"} x"#),
        "the request body is not a valid JSON object: syntax error at line 1 column 15"
    );
    assert_eq!(parse("{}"), "the request names no model; set \"model\" to a model's name");
    assert_eq!(parse(r#"{"model":7}"#), "\"model\" must be a non-empty string");
    assert_eq!(parse(r#"{"model":""}"#), "\"model\" must be a non-empty string");
    let deep = format!(r#"{{"model":"a","tools":{}1{}}}"#, "[".repeat(5000), "]".repeat(5000));
    assert!(parse(&deep).contains("not a valid JSON object"));
    assert!(super::parse(Endpoint::ChatCompletions, b"{\"model\":\"\xff\"}").is_err());
}

#[test]
fn what_is_not_understood_is_left_to_the_engine() {
    for messages in ["7", "null", "{}", "[7]", r#"[{"content":"no role"}]"#] {
        let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
        assert!(matches!(chat(&body).1.messages, Messages::Unknown), "{messages}");
    }
    let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#;
    let Messages::List(messages) = chat(body).1.messages else { panic!("unknown") };
    assert!(matches!(&messages[0].content, Content::Parts(parts) if matches!(parts[0], Part::Other(_))));
}

#[test]
fn completions_take_text_and_leave_token_ids_alone() {
    let request = parse(Endpoint::Completions, br#"{"model":"m","prompt":"hi"}"#).unwrap();
    assert!(matches!(request.prompt, Prompt::Text(text) if text == "hi"));
    let request = parse(Endpoint::Completions, br#"{"model":"m","prompt":[1,2,3]}"#).unwrap();
    assert!(matches!(request.prompt, Prompt::Opaque) && !request.bare);
    let request = parse(Endpoint::Completions, br#"{"model":"m","prompt":"hi","add_special_tokens":false}"#).unwrap();
    assert!(matches!(request.prompt, Prompt::Text(_)) && request.bare);
    let request = parse(Endpoint::Completions, br#"{"model":"m","prompt":"hi","truncate_prompt_tokens":5}"#).unwrap();
    assert!(matches!(request.prompt, Prompt::Opaque));
}

#[test]
fn paths() {
    assert_eq!(Endpoint::of_path("/v1/chat/completions?x=1"), Some(Endpoint::ChatCompletions));
    assert_eq!(Endpoint::of_path("/v1/completions/"), Some(Endpoint::Completions));
    assert_eq!(Endpoint::of_path("/v1/other"), None);
}
