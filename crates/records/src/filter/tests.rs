use proptest::prelude::*;

use super::*;

fn path(expression: &str) -> JsonPath {
    JsonPath::parse(expression).expect(expression)
}

fn json(expression: &str, record: &str) -> String {
    let mut out = Vec::new();
    path(expression).apply_json(record.as_bytes(), &mut out).expect(expression);
    String::from_utf8(out).expect("UTF-8")
}

fn json_error(expression: &str, record: &str) -> String {
    let result = path(expression).apply_json(record.as_bytes(), &mut Vec::new());
    result.expect_err(expression).message().to_owned()
}

fn csv(expression: &str, line: &str) -> String {
    let mut out = Vec::new();
    path(expression).apply_csv(line.as_bytes(), &mut out).expect(expression);
    String::from_utf8(out).expect("UTF-8")
}

fn refused(expression: &str, why: &str) {
    let error = JsonPath::parse(expression).expect_err(expression);
    assert!(error.message().contains(why), "{why:?} is not in {:?}", error.message());
}

#[test]
fn one_name_or_index_selects_a_value() {
    let record = r#"{"id":7, "features":[1.50,2,3], "a":{"b":{"c":null}}}"#;
    assert_eq!(json("$", record), record);
    assert_eq!(json("$.features", record), "[1.50,2,3]");
    assert_eq!(json("$['features']", record), "[1.50,2,3]");
    assert_eq!(json("$.features[0]", record), "1.50");
    assert_eq!(json("$.features[-1]", record), "3");
    assert_eq!(json("$.features.[1]", record), "2");
    assert_eq!(json("$.a.b.c", record), "null");
    assert_eq!(json(r#"$["a"]['b']"#, record), r#"{"c":null}"#);
}

#[test]
fn several_names_select_an_object() {
    let record = r#"{"f":{"c1":1,"c2":[2],"c3":3},"x":0}"#;
    // Written with a dot before the bracket in SageMaker's guide.
    assert_eq!(json("$.f.['c1','c2']", record), r#"{"c1":1,"c2":[2]}"#);
    assert_eq!(json("$.f['c3', 'c1']", record), r#"{"c3":3,"c1":1}"#);
    assert_eq!(json(r#"$["x"]"#, record), "0");
    let rows = r#"[{"a":1,"b":2},{"b":4,"a":3}]"#;
    assert_eq!(json("$[*]['a','b']", rows), r#"[{"a":1,"b":2},{"a":3,"b":4}]"#);
    assert_eq!(json("$['f','x'].*", r#"{"f":[1,2],"x":[3]}"#), "[1,2,3]");
}

#[test]
fn several_indices_and_slices_select_an_array() {
    let record = "[0,1,2,3,4,5,6]";
    assert_eq!(json("$[1,3,5]", record), "[1,3,5]");
    assert_eq!(json("$[1:4]", record), "[1,2,3]");
    assert_eq!(json("$[:2]", record), "[0,1]");
    assert_eq!(json("$[5:]", record), "[5,6]");
    assert_eq!(json("$[0,5:]", record), "[0,5,6]");
    assert_eq!(json("$[-2:]", record), "[5,6]");
    assert_eq!(json("$[:-5]", record), "[0,1]");
    assert_eq!(json("$[5:100]", record), "[5,6]");
    assert_eq!(json("$[4:2]", record), "[]");
    assert_eq!(json("$[ 0 , 1 : 2 ]", record), "[0,1]");
    assert_eq!(json("$[*]", record), record);
    assert_eq!(json("$.*", r#"{"a":1,"b":[2]}"#), "[1,[2]]");
    assert_eq!(json("$.p[*].s", r#"{"p":[{"s":1},{"s":2}]}"#), "[1,2]");
    assert_eq!(json("$[1:].s", r#"[0,{"s":1},{"s":2}]"#), "[1,2]");
}

#[test]
fn texts_stay_as_they_are() {
    let record =
        "\u{feff} {\"b\": 1e5, \"a\": -0.10, \"n\": NaN,\n  \"s\": \"\\u0041 \\n \u{e9}\"}\r\n";
    assert_eq!(json("$.s", record), "\"\\u0041 \\n \u{e9}\"");
    assert_eq!(json("$['a','b']", record), r#"{"a":-0.10,"b":1e5}"#);
    assert_eq!(json("$.n", record), "NaN");
    assert_eq!(json("$.A", r#"{"\u0041":12345678901234567890}"#), "12345678901234567890");
    assert_eq!(json("$.a", "{\"a\":[1,\n    2,\r\n    3\n]}"), "[1,2,3]");
    assert_eq!(json("$.a", r#"{"a":1,"a":2}"#), "2");
}

#[test]
fn what_is_missing_is_told_with_what_exists() {
    assert_eq!(
        json_error("$.c", r#"{"a":1,"b":2}"#),
        "the JSONPath \"$.c\" selects the member \"c\", but the object has the members \"a\", \"b\""
    );
    assert!(json_error("$['a','c']", r#"{"a":1,"b":2}"#).ends_with("the members \"a\", \"b\""));
    assert!(json_error("$.c", "{}").ends_with("no members"));
    assert_eq!(
        json_error("$[3]", "[1,2,3]"),
        "the JSONPath \"$[3]\" selects index 3, but there are 3 elements (the first has index 0)"
    );
    assert!(json_error("$[-4]", "[1,2,3]").contains("selects index -4, but there are 3 elements"));
    assert!(json_error("$[0,3]", "[1,2,3]").contains("selects index 3"));
    assert!(json_error("$.a", "[1]").contains("finds an array instead of an object"));
    assert!(json_error("$[0]", "{\"a\":1}").contains("finds an object"));
    assert!(json_error("$[*]", "1").contains("finds a number"));
    assert!(json_error("$.a", "{\"a\":").contains("is not JSON"));
    assert!(json_error("$", "{} {}").contains("more text follows its value (at byte 3)"));
    assert!(json_error("$", "").contains("The document is empty"));
}

#[test]
fn columns_of_csv_are_selected_as_they_are_written() {
    assert_eq!(csv("$[1:]", "7,1.50,3"), "1.50,3");
    assert_eq!(csv("$[0]", "7,1.50,3"), "7");
    assert_eq!(csv("$[-1]", "1,2,3,0.5\r\n"), "0.5");
    assert_eq!(csv("$[0,2]", "\"a,\"\"b\",2,\" c \""), "\"a,\"\"b\",\" c \"");
    assert_eq!(csv("$[1]", "\"a,b\",,c"), "");
    assert_eq!(csv("$[0,2:]", "a,b,c,"), "a,c,");
    assert_eq!(csv("$", "a,b\n"), "a,b");
    assert_eq!(csv("$[*]", "a,b"), "a,b");
    let error = path("$[3]").apply_csv(b"1,2,3", &mut Vec::new()).expect_err("out of range");
    assert!(error.message().contains("selects index 3, but there are 3 columns"));
    for expression in ["$.a", "$['a','b']", "$[0][1]", "$[0].a"] {
        assert!(path(expression).check_csv().is_err(), "{expression}");
        assert!(path(expression).apply_csv(b"1,2", &mut Vec::new()).is_err(), "{expression}");
    }
}

#[test]
fn other_expressions_are_refused_with_the_character() {
    refused("", "at character 1: a path starts with $");
    refused("features", "at character 1");
    refused("$features", "at character 2: expected a dot or a bracket");
    refused("$.", "at character 3: expected a name");
    refused("$..a", "at character 3: recursive descent");
    refused("$[", "at character 3: expected an index");
    refused("$[]", "at character 3");
    refused("$[1", "at character 4: expected ]");
    refused("$[1,]", "at character 5: expected an index");
    refused("$['a',1]", "at character 7: expected a name in quotes");
    refused("$['a','b','a']", "at character 14: the name is there twice");
    refused("$['a", "at character 5: the closing quote is missing");
    refused("$['a\\n']", "at character 6: only quotes");
    refused("$[?(@.a)]", "at character 3: filters");
    refused("$[::2]", "at character 4: a slice with a step");
    refused("$[1:2:3]", "with a step");
    refused("$[99999999999999999999]", "at character 3: expected an integer");
    refused("$[-]", "expected an integer");
    refused("$.\u{e9}[x]", "at character 5");
    refused("$.a b", "at character 4");
    refused(&format!("$.{}", "a".repeat(62)), "64 characters, and 63 are allowed");
    assert!(JsonPath::parse(&format!("$.{}", "\u{e9}".repeat(61))).is_ok());
}

#[test]
fn identity_is_recognized() {
    assert!(path("$").is_identity());
    assert!(JsonPath::default().is_identity());
    assert!(!path("$[*]").is_identity());
}

#[test]
fn repeated_parts_are_bounded() {
    let text = "a".repeat(2000);
    let nested = format!("{}\"{text}\"{}", "[".repeat(12), "]".repeat(12));
    let twice = format!("${}", "[0,0]".repeat(12));
    assert!(json_error(&twice, &nested).contains("repeats parts"));
    let record = format!("[{{\"a\":\"{}\"}}]", "a".repeat(2000));
    assert!(json_error("$[0,0,0,0,0,0,0,0,0,0]['a']", &record).contains("repeats parts"));
}

#[test]
fn a_deep_record_is_no_crash() {
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert_eq!(json("$[0][0]", &deep).len(), deep.len() - 4);
    assert!(json_error("$[0]", &"[".repeat(1_000_000)).contains("is not JSON"));
}

/// Expressions that mostly are paths.
fn expressions() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            Just(".a".to_owned()),
            Just("['a','b']".to_owned()),
            Just("[*]".to_owned()),
            Just(".*".to_owned()),
            (-4_i64..4).prop_map(|index| format!("[{index}]")),
            (-4_i64..4, -4_i64..4).prop_map(|(a, b)| format!("[{a}:{b}]")),
            "[-.$\\[\\]'*a:,0-9]{0,3}",
        ],
        0..4,
    )
    .prop_map(|steps| format!("${}", steps.concat()))
}

proptest! {
    #[test]
    fn slices_of_columns_are_those_of_rust(
        fields in proptest::collection::vec("[a-z0-9 ]{0,3}", 1..8),
        start in 0_usize..10,
        end in 0_usize..10,
    ) {
        let line = fields.join(",");
        let bound = |bound: usize| bound.min(fields.len());
        let expected = fields.get(bound(start)..bound(end)).unwrap_or_default().join(",");
        prop_assert_eq!(csv(&format!("$[{start}:{end}]"), &line), expected);
    }

    #[test]
    fn fields_joined_are_the_line(line in "[a\", ]{0,20}") {
        prop_assert_eq!(fields(line.as_bytes()).join(&b','), line.as_bytes());
    }

    #[test]
    fn any_path_gives_json_or_an_error(expression in expressions(), record in "[\\[\\]{}\"ab:,0-9 ]{0,24}") {
        if let Ok(path) = JsonPath::parse(&expression) {
            let mut out = Vec::new();
            if path.apply_json(record.as_bytes(), &mut out).is_ok() {
                prop_assert!(crate::text::document(&out).is_ok(), "{:?}", out);
            }
            let _ = path.apply_csv(record.as_bytes(), &mut Vec::new());
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(expression: String) {
        let _ = JsonPath::parse(&expression);
    }
}
