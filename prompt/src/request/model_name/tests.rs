//! Finding the model in bodies that come piece by piece.

use std::fmt::Write;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const FORM: &str = "multipart/form-data; boundary=B";

/// What is said of a body in one piece; the same has to be said of it byte by byte.
fn search(content_type: &str, body: &[u8]) -> Search {
    let of = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut finder = ModelFinder::new(Some(content_type.as_bytes()));
        for piece in pieces {
            let said = finder.feed(piece);
            if said != Search::More {
                assert_eq!(finder.end(), said, "what was said stays");
                return said;
            }
        }
        finder.end()
    };
    let whole = of(&mut [body].into_iter());
    assert_eq!(of(&mut body.chunks(1)), whole, "byte by byte: {}", body.escape_ascii());
    whole
}

fn json(body: &str) -> Search {
    search("application/json", body.as_bytes())
}

fn form(body: &str) -> Search {
    search(FORM, body.replace('\n', "\r\n").as_bytes())
}

fn found(name: &str) -> Search {
    Search::Found(name.to_owned())
}

#[test]
fn only_the_top_levels_model_counts() {
    for body in [
        r#"{"model":"beta"}"#,
        "\u{feff} \r\n\t{ \"model\" : \"beta\" , \"x\"",
        r#"{"messages":[{"model":"x","content":"\"model\":\"x\""}],"a":{"model":"x"},"model":"beta"}"#,
        r#"{"a":1,"b":-1.5e+3,"c":true,"d":null,"e":NaN,"f":[],"g":{},"h":"]}","model":"beta"}"#,
        r#"{"models":"x","mode":"x","Model":"x","":"x","model ":"x","model":"beta"}"#,
        r#"{"x":"model","y":"\\","z":"\\\"","model":"beta"}"#,
        r#"{"m\u006Fd\u0065l":"\u0062eta"}"#,
        r#"{"\u006d\u006f\u0064\u0065\u006c":"beta"}"#,
        r#"{"m\u00e9del":1,"mod\ud83d\ude00":1,"\ud800":1,"\udc00":1,"model":"beta"}"#,
        r#"{"model":null,"model":"","model":"beta"}"#,
    ] {
        assert_eq!(json(body), found("beta"), "{body}");
    }
    assert_eq!(
        json(r#"{"model":"\"\\\/\b\f\n\r\t\u00e9é\ud83d\ude00"}"#),
        found("\"\\/\x08\x0c\n\r\té\u{e9}😀")
    );
}

#[test]
fn the_name_is_said_at_once() {
    let mut finder = ModelFinder::new(None);
    assert_eq!(finder.feed(br#"{"model":"beta"#), Search::More);
    assert_eq!(finder.feed(br#"","messages":[{"#), found("beta"));
    assert_eq!(finder.feed(br#"}],"model":"demo"}"#), found("beta"), "the first counts");
}

#[test]
fn a_body_without_a_model_says_so_at_its_end() {
    for body in
        ["", " \n", "{}", r#"{"model":null}"#, r#"{"model":"","a":1}"#, r#"{"a":{"model":"x"}}"#]
    {
        assert_eq!(json(body), Search::Absent, "{body}");
    }
    let mut finder = ModelFinder::new(None);
    assert_eq!(finder.feed(br#"{"model":null"#), Search::More);
    assert_eq!(finder.feed(b"}"), Search::Absent);
}

#[test]
fn what_is_no_object_or_ends_early_is_unreadable() {
    for body in [
        r#"["model","beta"]"#,
        r#"[{"model":"beta"}]"#,
        r#""model":"beta""#,
        r#"x{"model":"beta"}"#,
        "\u{feff}\u{feff}{\"model\":\"beta\"}",
        "null",
        "{",
        r#"{"model""#,
        r#"{"model":"beta"#,
        r#"{"model":nul}"#,
        r#"{"model":nulls}"#,
        r#"{"model":1}"#,
        r#"{"model":true}"#,
        r#"{"model":["beta"]}"#,
        r#"{"model":{"a":1}}"#,
        r#"{"model":"be\ud800ta"}"#,
        r#"{"model":"\udc00"}"#,
        r#"{"model":"\ud800\u0041"}"#,
        r#"{"model":"\x"}"#,
        r#"{"model":"\u12g4"}"#,
        "{\"model\":\"be\nta\"}",
        r#"{,"model":"beta"}"#,
        r#"{"a":1,}"#,
        r#"{"a" "b","model":"beta"}"#,
        r#"{"a":"b" "model":"beta"}"#,
        r#"{"a":,"model":"beta"}"#,
        r#"{"a":1"model":"beta"}"#,
        r#"{model:"beta"}"#,
        "model=beta",
    ] {
        assert_eq!(json(body), Search::Unreadable, "{body}");
    }
    assert_eq!(search("", b"{\"model\":\"be\xffta\"}"), Search::Unreadable);
    // Python's parser takes this for what it is; other gateways and engines don't.
    let utf16: Vec<u8> = r#"{"model":"beta"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(search("", &utf16), Search::Unreadable);
}

#[test]
fn names_and_depth_have_bounds() {
    let named = |name: &str| json(&json!({"model": name}).to_string());
    let form_named = |name: &str| {
        form(&format!("--B\nContent-Disposition: form-data; name=model\n\n{name}\n--B--"))
    };
    for length in [1, 1023, 1024] {
        let name = "é".repeat(length / 2) + &"x".repeat(length % 2);
        assert_eq!(named(&name), found(&name));
        assert_eq!(form_named(&name), found(&name));
    }
    let long = "x".repeat(1025);
    assert_eq!(named(&long), Search::Unreadable);
    assert_eq!(form_named(&long), Search::Unreadable);
    let mut finder = ModelFinder::new(None);
    finder.feed(b"{\"model\":\"");
    assert_eq!(finder.feed(&[b'x'; 4096]), Search::Unreadable, "and it isn't kept");

    let deep = |depth: usize| {
        json(&format!(r#"{{"a":{}{},"model":"beta"}}"#, "[".repeat(depth), "]".repeat(depth)))
    };
    assert_eq!(deep(1 << 16), found("beta"));
    assert_eq!(deep((1 << 16) + 1), Search::Unreadable);
}

#[test]
fn the_field_of_a_form_is_found() {
    let file = "--B\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\n\
                Content-Type: audio/wav\n\n\r-\n-B\n--A\n\n--B--\n";
    let file = file.replace("--B--\n", "");
    for body in [
        "--B\nContent-Disposition: form-data; name=\"model\"\n\nbeta\n--B--\n",
        "--B\nContent-Disposition: form-data; name=\"model\"\n\nbeta\n--B\n",
        "\n\n--B\ncontent-disposition:form-data;NAME=model\n\nbeta\n--B--",
        "--B\nX-A: 1\nCONTENT-DISPOSITION:   form-data ; name=model ; x=\"; filename=y\"\nContent-Type: text/plain\n\nbeta\n--B--",
        "--B\nContent-Disposition: form-data; name=a\n\n\n--B\nContent-Disposition: form-data; name=model\n\nbeta\n--B--",
        // The field's name in another case, the field as a file, and empty.
        "--B\nContent-Disposition: form-data; name=Model\n\nx\n--B\nContent-Disposition: form-data; name=model; filename=\"\"\n\nx\n\
         --B\nContent-Disposition: form-data; name=model\n\n\n--B\nContent-Disposition: form-data; name=model\n\nbeta\n--B--",
        // Of two headers and of two parameters the last one counts.
        "--B\nContent-Disposition: form-data; name=x\nContent-Disposition: form-data; name=y; name=model\n\nbeta\n--B--",
        &(file.clone() + "--B\nContent-Disposition: form-data; name=\"model\"\n\nbeta\n--B--"),
    ] {
        assert_eq!(form(body), found("beta"), "{body}");
    }
    let lines = "--B\nContent-Disposition: form-data; name=model\n\nbe\n-\r\n--\r\n--Cta\n--B--";
    assert_eq!(form(lines), found("be\r\n-\r\r\n--\r\r\n--Cta"));
    assert_eq!(form(&(file + "--B--")), Search::Absent);
    assert_eq!(form("--B--\n"), Search::Absent);
}

#[test]
fn a_forms_boundary_may_be_written_in_many_ways() {
    let long = "x".repeat(256);
    for (parameters, boundary) in [
        ("boundary=B", "B"),
        ("boundary=\"B\"", "B"),
        ("BOUNDARY = \"a; b\"; charset=UTF-8", "a; b"),
        ("charset=utf-8;boundary=--B--", "--B--"),
        ("boundary=A; boundary=B", "B"),
        (&format!("boundary={long}"), &long),
    ] {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nbeta\r\n--{boundary}--"
        );
        let content_type = format!("Multipart/Form-Data; {parameters}");
        assert_eq!(search(&content_type, body.as_bytes()), found("beta"), "{parameters}");
    }
    let body = b"--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nbeta\r\n--B--";
    for parameters in [
        "",
        "boundary=",
        "boundary*=B",
        "boundary=B; boundary*0=B",
        "boundary=C",
        "boundary=B; charset=utf-7",
    ] {
        let content_type = format!("multipart/form-data; {parameters}");
        assert_eq!(search(&content_type, body), Search::Unreadable, "{parameters}");
    }
    let content_type = format!("multipart/form-data; boundary={}", "x".repeat(257));
    assert_eq!(search(&content_type, body), Search::Unreadable);
}

#[test]
fn a_form_that_engines_refuse_or_see_differently_is_unreadable() {
    for body in [
        "",
        "text before\n--B\nContent-Disposition: form-data; name=model\n\nbeta\n--B--",
        "\ntext before\n--B\nContent-Disposition: form-data; name=model\n\nbeta\n--B--",
        "--B \nContent-Disposition: form-data; name=model\n\nbeta\n--B--",
        "--Bx\nContent-Disposition: form-data; name=model\n\nbeta\n--B--",
        "--B\nContent-Disposition: form-data; name=model\n\nbeta\n--B --",
        "--B\nContent-Disposition: form-data; name=model\n\nbeta\n--Bx\n--B--",
        "--B\nContent-Disposition: form-data; name=model\n\nbeta\n--B-",
        "--B\nContent-Disposition: form-data; name=model\n\nbeta",
        "--B\nContent-Disposition: form-data; name=model",
        "--B\nContent-Disposition: form-data; name=model; name*=utf-8''x\n\nbeta\n--B--",
        "--B\nContent-Disposition: form-data; name=model; filename*=utf-8''x\n\nbeta\n--B--",
        "--B\nContent-Disposition: form-data\n\nbeta\n--B--",
        "--B\nContent-Type: text/plain\n\nbeta\n--B--",
        "--B\n\nbeta\n--B--",
        "--B\nContent Disposition: form-data; name=model\n\nbeta\n--B--",
        "--B\n: form-data; name=model\n\nbeta\n--B--",
        "--B\nContent-Disposition: form-data; name=model\n x: y\n\nbeta\n--B--",
        "--B\nContent-Disposition: form-data;\r name=model\n\nbeta\n--B--",
        "--B\nContent-Disposition: form-data; name=model\n\n--B--",
        "{\"model\":\"beta\"}",
    ] {
        assert_eq!(form(body), Search::Unreadable, "{body}");
    }
    let ends = b"--B\nContent-Disposition: form-data; name=model\n\nbeta\n--B--\n";
    assert_eq!(search(FORM, ends), Search::Unreadable, "lines end in CR LF");
    let header =
        b"--B\r\nContent-Disposition: form-data; name =\n\"model\"\r\n\r\nbeta\r\n--B--\r\n";
    assert_eq!(search(FORM, header), Search::Unreadable, "versions differ in what this is");
    let value = b"--B\r\nContent-Disposition: form-data; name=model\r\n\r\nb\xffta\r\n--B--\r\n";
    assert_eq!(search(FORM, value), Search::Unreadable);
    let long = format!("--B\nX: {}\n", "x".repeat(8 << 10));
    assert_eq!(form(&long), Search::Unreadable);
    let value = "--B\r\nContent-Disposition: form-data; name=model\r\n\r\nbéta\r\n--B--\r\n";
    let latin = format!("{FORM}; charset=ISO-8859-1");
    assert_eq!(search(&latin, value.as_bytes()), Search::Unreadable);
    assert_eq!(search(&latin, value.replace('é', "e").as_bytes()), found("beta"));
}

#[test]
fn other_types_are_tried_as_json() {
    let body = br#"{"model":"beta"}"#;
    for content_type in
        ["", "text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=B"]
    {
        assert_eq!(search(content_type, body), found("beta"), "{content_type}");
    }
    assert_eq!(ModelFinder::new(None).feed(body), found("beta"));
    assert_eq!(search("application/x-www-form-urlencoded", b"model=beta"), Search::Unreadable);
}

/// Any JSON value, with strings that look like JSON.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(|number: f64| json!(number)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((key(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,20}", r#"["\\{}\[\],:a-c é😀]{0,20}"#]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![2 => text(), 1 => Just("model".to_owned()), 1 => "mode?l?s?"]
}

/// Writes a string with some of its characters escaped.
fn escaped(text: &str, dice: &mut impl Iterator<Item = u8>) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        if dice.next().unwrap_or(255) >= 64 {
            let written = Value::from(character.to_string()).to_string();
            out.push_str(&written[1..written.len() - 1]);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}").unwrap();
            }
        }
    }
    out + "\""
}

/// Writes a value with white space and escapes where they may be.
fn written(value: &Value, dice: &mut impl Iterator<Item = u8>) -> String {
    let mut out = String::new();
    let blank = |out: &mut String, dice: &mut dyn Iterator<Item = u8>| {
        out.push_str(["", "", "", " ", "\n", "\r\n\t"][usize::from(dice.next().unwrap_or(0) % 6)]);
    };
    blank(&mut out, dice);
    match value {
        Value::String(text) => out += &escaped(text, dice),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| written(value, dice)).collect();
            write!(out, "[{}]", values.join(",")).unwrap();
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (name, value)) in members.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                blank(&mut out, dice);
                out += &escaped(name, dice);
                blank(&mut out, dice);
                out.push(':');
                out += &written(value, dice);
            }
            out.push('}');
        }
        other => out += &other.to_string(),
    }
    blank(&mut out, dice);
    out
}

/// A part of a form: its header, what is in it, and what it says of the model.
fn part() -> impl Strategy<Value = (String, Vec<u8>, Option<String>)> {
    let data = || {
        let piece = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..9),
            proptest::sample::select(vec![
                "\r",
                "\n",
                "\r\n",
                "\r\n-",
                "\r\n--",
                "\r\n--b",
                "--bound",
                "\r\n--Bound"
            ])
            .prop_map(|text| text.as_bytes().to_vec()),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    };
    let disposition = |rest: &str| format!("Content-Disposition: form-data; {rest}\r\n");
    prop_oneof![
        ("[a-z]{1,6}s", data()).prop_map(move |(name, data)| {
            (disposition(&format!("name=\"{name}\"; filename=\"model\"")), data, None)
        }),
        data().prop_map(move |data| (disposition("filename=a.wav; name=model"), data, None)),
        data().prop_map(move |data| (disposition("name=prompt"), data, None)),
        ("[a-zA-Z0-9/._é -]{0,30}", any::<bool>()).prop_map(move |(name, quoted)| {
            let field = if quoted { "name=\"model\"" } else { "NAME=model" };
            (disposition(field), name.as_bytes().to_vec(), Some(name))
        }),
    ]
}

/// Cuts a body at these places.
fn in_pieces(content_type: &str, body: &[u8], cuts: &[proptest::sample::Index]) -> Search {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    cuts.sort_unstable();
    let mut finder = ModelFinder::new(Some(content_type.as_bytes()));
    let mut from = 0;
    for cut in cuts {
        finder.feed(&body[from..cut]);
        from = cut;
    }
    finder.feed(&body[from..]);
    finder.end()
}

fn cuts() -> impl Strategy<Value = Vec<proptest::sample::Index>> {
    proptest::collection::vec(any::<proptest::sample::Index>(), 0..8)
}

proptest! {
    #[test]
    fn it_agrees_with_a_parser(
        members in proptest::collection::vec((key(), value()), 0..8),
        dice in proptest::collection::vec(any::<u8>(), 0..200),
        cuts in cuts(),
    ) {
        let object: serde_json::Map<String, Value> = members.into_iter().collect();
        let expected = match object.get("model") {
            None | Some(Value::Null) => Search::Absent,
            Some(Value::String(name)) if name.is_empty() => Search::Absent,
            Some(Value::String(name)) => found(name),
            Some(_) => Search::Unreadable,
        };
        let body = written(&Value::Object(object), &mut dice.into_iter());
        prop_assert!(serde_json::from_str::<Value>(&body).is_ok(), "{}", body);
        prop_assert_eq!(json(&body), expected.clone(), "{}", body);
        prop_assert_eq!(in_pieces("", body.as_bytes(), &cuts), expected);
    }

    #[test]
    fn a_form_says_what_was_put_in(
        parts in proptest::collection::vec(part(), 0..6),
        cuts in cuts(),
    ) {
        const CONTENT_TYPE: &str = "multipart/form-data; boundary=bound";
        let mut body = Vec::new();
        for (headers, data, _) in &parts {
            // The boundary itself isn't among the data.
            let data = String::from_utf8_lossy(data).replace("--bound", "--Bound");
            body.extend_from_slice(format!("--bound\r\n{headers}\r\n{data}\r\n").as_bytes());
        }
        body.extend_from_slice(b"--bound--\r\n");
        let name = parts.iter().find_map(|(.., name)| name.as_ref().filter(|name| !name.is_empty()));
        let expected = name.map_or(Search::Absent, |name| found(name));
        prop_assert_eq!(search(CONTENT_TYPE, &body), expected.clone(), "{}", body.escape_ascii());
        prop_assert_eq!(in_pieces(CONTENT_TYPE, &body, &cuts), expected);
    }

    #[test]
    fn any_bytes_are_answered_however_they_are_split(
        text in prop_oneof![
            r#"(\{?"?mod\\u0065l"?:?|"|\\|[{}\[\],:]|model|null|b){0,12}"#,
            "(\r\n|\r|--B|--|-|Content-Disposition: |form-data; |name=model|\r\n\r\n|;|=|x){0,16}",
        ],
        bytes in proptest::collection::vec(any::<u8>(), 0..4),
        is_form in any::<bool>(),
        cuts in cuts(),
    ) {
        let body = [text.as_bytes(), &bytes].concat();
        let content_type = if is_form { FORM } else { "" };
        let whole = search(content_type, &body);
        prop_assert_ne!(&whole, &Search::More);
        prop_assert_eq!(in_pieces(content_type, &body, &cuts), whole);
    }
}
