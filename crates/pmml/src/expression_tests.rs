//! Outputs, functions of a file, types, and models without a reference that evaluates them.

use serde_json::Value;

use super::compile;
use super::tests::{assert_truth, of_predicate, predict, same};
use tensorserve_tensor::error::Code;

/// A file with a regression of `x` and these transformations and outputs.
fn of_outputs(transformations: &str, outputs: &str) -> String {
    format!(
        r#"<PMML version="4.4"><DataDictionary>
        <DataField name="x" optype="continuous" dataType="double"/>
        <DataField name="n" optype="continuous" dataType="integer"/>
        <DataField name="c" optype="categorical" dataType="string"/>
        <DataField name="d" optype="categorical" dataType="date"/>
        <DataField name="o" optype="ordinal" dataType="string"><Value value="low"/>
        <Value value="mid"/><Value value="high"/></DataField>
        <DataField name="y" optype="continuous" dataType="double"/></DataDictionary>
        <TransformationDictionary>{transformations}</TransformationDictionary>
        <RegressionModel functionName="regression"><MiningSchema><MiningField name="x"/>
        <MiningField name="n"/><MiningField name="c"/><MiningField name="d"/><MiningField name="o"/>
        <MiningField name="y" usageType="target"/></MiningSchema><Output>{outputs}</Output>
        <RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/></RegressionTable>
        </RegressionModel></PMML>"#
    )
}

/// An output that is an expression.
fn shown(name: &str, data_type: &str, expression: &str) -> String {
    format!(
        r#"<OutputField name="{name}" feature="transformedValue" dataType="{data_type}">{expression}</OutputField>"#
    )
}

fn apply(function: &str, arguments: &[&str]) -> String {
    format!(r#"<Apply function="{function}">{}</Apply>"#, arguments.concat())
}

const X: &str = r#"<FieldRef field="x"/>"#;

#[test]
fn outputs_that_cannot_be_computed_are_left_out_with_a_warning() {
    let outputs = [
        r#"<OutputField name="p" feature="predictedValue"/>"#,
        r#"<OutputField name="r" feature="residual"/>"#,
        r#"<OutputField name="a" feature="affinity" value="k1"/>"#,
        r#"<OutputField name="e" feature="x-own"/>"#,
        &shown("of_r", "double", r#"<FieldRef field="r"/>"#),
        &shown("lag", "double", r#"<Lag field="x"/>"#),
        r#"<OutputField name="decided" feature="decision" dataType="boolean">
           <Apply function="greaterThan"><FieldRef field="p"/><Constant>2</Constant></Apply></OutputField>"#,
    ];
    let file = of_outputs("", &outputs.concat());
    let all = predict(&file, &[("x", Value::from(1.0))]);
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(names, ["decided", "p", "y"]);
    assert_eq!((&all["p"], &all["decided"]), (&Value::from(3.0), &Value::from("true")));
    let warnings = compile(&file).expect("a model").warnings;
    let named: Vec<&str> = warnings.iter().filter_map(|text| text.split('"').nth(1)).collect();
    assert_eq!(named, ["r", "a", "e", "of_r", "lag"], "{warnings:?}");
    assert!(warnings[0].contains("feature=\"residual\""), "{warnings:?}");
    // A typing error is one still.
    let file = of_outputs("", &shown("bad", "double", r#"<FieldRef field="nothing"/>"#));
    assert_eq!(compile(&file).err().expect("refused").code(), Code::DataLoss);
}

#[test]
fn functions_of_a_file_are_called_but_do_not_call_themselves() {
    let twice = r#"<DefineFunction name="twice" optype="continuous"><ParameterField name="a"/>
        <Apply function="+"><FieldRef field="a"/><FieldRef field="a"/></Apply></DefineFunction>"#;
    let four = apply("twice", &[&apply("twice", &[X])]);
    let file = of_outputs(twice, &shown("four", "double", &four));
    assert_eq!(predict(&file, &[("x", Value::from(1.5))])["four"], 6.0);
    // Whole numbers stay whole, as in JPMML.
    let text = apply("concat", &[&apply("twice", &[r#"<FieldRef field="n"/>"#])]);
    let file = of_outputs(twice, &shown("text", "string", &text));
    assert_eq!(predict(&file, &[("n", Value::from(4.0))])["text"], "8");

    let own =
        twice.replace("\"+\"", "\"twice\"").replace("<FieldRef field=\"a\"/></Apply>", "</Apply>");
    let error = compile(&of_outputs(&own, &shown("t", "double", &apply("twice", &[X]))));
    assert!(error.err().expect("refused").message().contains("calls itself"));
    // Each function calls the one before 16 times: 2^28 additions.
    let mut chain = twice.replace("\"twice\"", "\"f0\"");
    for n in 0..7 {
        let call = apply(&format!("f{n}"), &[r#"<FieldRef field="a"/>"#]);
        let both = apply("sum", &[call.as_str(); 16]);
        chain += &format!(
            r#"<DefineFunction name="f{}"><ParameterField name="a"/>{both}</DefineFunction>"#,
            n + 1
        );
    }
    let file = of_outputs(&chain, &shown("t", "double", &apply("f7", &[X])));
    let warnings = compile(&file).expect("a model").warnings;
    assert!(warnings[0].contains("so many calls"), "{warnings:?}");
}

#[test]
fn strings_that_functions_make_are_bounded() {
    let mut fields = String::new();
    let mut last = "c".to_owned();
    for n in 0..40 {
        let part = format!(r#"<FieldRef field="{last}"/>"#);
        last = format!("t{n}");
        let both = apply("concat", &[&part, &part]);
        fields +=
            &format!(r#"<DerivedField name="{last}" dataType="string">{both}</DerivedField>"#);
    }
    let outputs = shown("short", "string", r#"<FieldRef field="t1"/>"#)
        + &shown("long", "string", r#"<FieldRef field="t39"/>"#);
    let all = predict(&of_outputs(&fields, &outputs), &[("c", Value::from("ab"))]);
    assert_eq!((&all["short"], &all["long"]), (&Value::from("abababab"), &Value::Null));

    let constant = |text: &str| format!(r#"<Constant dataType="string">{text}</Constant>"#);
    let field = r#"<FieldRef field="c"/>"#;
    let longer = constant(&"x".repeat(2000));
    let outputs = [
        shown("replaced", "string", &apply("replace", &[field, &constant("b"), &longer])),
        shown("joined", "string", &apply("concat", &[field; 40])),
    ];
    let file = of_outputs("", &outputs.concat());
    let all = predict(&file, &[("c", Value::from("b".repeat(100_000)))]);
    assert_eq!((&all["replaced"], &all["joined"]), (&Value::Null, &Value::Null));
    assert_eq!(predict(&file, &[("c", Value::from("b"))])["replaced"], "x".repeat(2000));
    let many = apply("replace", &[field, &constant("b"), &constant(&"$0".repeat(17))]);
    let warnings =
        compile(&of_outputs("", &shown("m", "string", &many))).expect("a model").warnings;
    assert!(warnings[0].contains("more than 16 groups"), "{warnings:?}");
}

#[test]
fn values_of_all_types_are_compared_and_converted() {
    let field = |name: &str| format!(r#"<FieldRef field="{name}"/>"#);
    let day = r#"<Constant dataType="date">2004-08-20</Constant>"#;
    let outputs = [
        shown("after", "boolean", &apply("greaterThan", &[&field("d"), day])),
        shown("days", "dateDaysSince[1960]", &field("d")),
        shown("day", "date", &field("d")),
        shown("number", "double", &field("c")),
        shown("text", "string", &field("x")),
        shown("whole", "integer", &field("x")),
        shown("order", "boolean", &apply("lessThan", &[&field("c"), "<Constant>4</Constant>"])),
    ];
    let outputs = outputs.concat().replace("<Constant>4", "<Constant dataType=\"string\">4");
    let file = of_outputs("", &outputs);
    let row = [
        ("d", Value::from("2004-08-21")),
        ("c", Value::from("3.5")),
        ("x", Value::from(2.5)),
        ("n", Value::from(1.0)),
    ];
    let all = predict(&file, &row);
    let get = |name: &str| all[name].clone();
    assert_eq!((get("after"), get("day")), (Value::from("true"), Value::from("2004-08-21")));
    assert_eq!((get("days"), get("number")), (Value::from(16304.0), Value::from(3.5)));
    assert_eq!((get("text"), get("order")), (Value::from("2.5"), Value::from("true")));
    // What is not whole is no integer; and an integer field with such a value is invalid.
    assert_eq!(get("whole"), Value::Null);
    assert_eq!(get("y"), 6.0);
    assert_eq!(
        predict(&file, &[("x", Value::from(1.0)), ("n", Value::from(1.5))])["y"],
        Value::Null
    );
    assert_eq!(
        predict(&file, &[("x", Value::from(1.0)), ("d", Value::from("21.8.2004"))])["y"],
        Value::Null
    );
}

#[test]
fn ordinal_values_have_the_order_of_the_dictionary() {
    let test = r#"<SimplePredicate field="o" operator="lessThan" value="high"/>"#;
    let file = of_predicate(test).replace(
        "</DataDictionary>",
        r#"<DataField name="o" optype="ordinal" dataType="string"><Value value="low"/>
           <Value value="mid"/><Value value="high"/></DataField></DataDictionary>"#,
    );
    let file = file
        .replace("<MiningField name=\"b\"/>", "<MiningField name=\"b\"/><MiningField name=\"o\"/>");
    let score = |value: &str| predict(&file, &[("o", Value::from(value))])["predicted"].clone();
    assert_eq!((score("low"), score("mid"), score("high")), (1.0.into(), 1.0.into(), 0.0.into()));
    let order = r#"<SimplePredicate field="c" operator="lessThan" value="m"/>"#;
    assert_truth(order, &[("c", Value::from("apple"))], &Value::from(1.0));
    assert_truth(order, &[("c", Value::from("pear"))], &Value::from(0.0));
}

#[test]
fn unknown_predicates_of_trees_are_weighted_or_counted() {
    let file = |strategy: &str| {
        format!(
            r#"<PMML version="4.4"><DataDictionary><DataField name="x" optype="continuous" dataType="double"/>
            <DataField name="t" optype="categorical" dataType="string"><Value value="a"/><Value value="b"/>
            </DataField></DataDictionary><TreeModel functionName="classification" missingValueStrategy="{strategy}">
            <MiningSchema><MiningField name="x"/><MiningField name="t" usageType="target"/></MiningSchema>
            <Output><OutputField name="p" feature="probability" value="a"/>
            <OutputField name="c" feature="confidence" value="a"/></Output>
            <Node score="a" recordCount="100"><True/><ScoreDistribution value="a" recordCount="60"/>
            <ScoreDistribution value="b" recordCount="40"/><Node score="a" recordCount="60">
            <SimplePredicate field="x" operator="lessThan" value="0"/>
            <ScoreDistribution value="a" recordCount="50" confidence="0.8"/>
            <ScoreDistribution value="b" recordCount="10" confidence="0.2"/></Node>
            <Node score="b" recordCount="40"><SimplePredicate field="x" operator="greaterOrEqual" value="0"/>
            <ScoreDistribution value="a" recordCount="10" confidence="0.3"/>
            <ScoreDistribution value="b" recordCount="30" confidence="0.7"/></Node></Node></TreeModel></PMML>"#
        )
    };
    let weighted = predict(&file("weightedConfidence"), &[]);
    assert!(same(&weighted["p"], &Value::from(0.6 * 0.8 + 0.4 * 0.3)), "{weighted:?}");
    assert_eq!(weighted["t"], "a");
    let known = predict(&file("weightedConfidence"), &[("x", Value::from(1.0))]);
    assert_eq!((&known["p"], &known["c"]), (&Value::from(0.25), &Value::from(0.3)));
    let counted = predict(&file("aggregateNodes"), &[]);
    assert_eq!(counted["p"], 0.6);
}

#[test]
fn contrast_matrices_give_the_numbers_of_categories() {
    let file = r#"<PMML version="4.4"><DataDictionary>
        <DataField name="g" optype="categorical" dataType="string"/>
        <DataField name="y" optype="continuous" dataType="double"/></DataDictionary>
        <GeneralRegressionModel functionName="regression" modelType="generalLinear"><MiningSchema>
        <MiningField name="g"/><MiningField name="y" usageType="target"/></MiningSchema><ParameterList>
        <Parameter name="p0"/><Parameter name="p1"/><Parameter name="p2"/></ParameterList><FactorList>
        <Predictor name="g" contrastMatrixType="Helmert"><Categories><Category value="1"/>
        <Category value="2"/><Category value="3"/></Categories><Matrix nbRows="3" nbCols="2">
        <Array type="real" n="2">0.5 0</Array><Array type="real" n="2">-0.25 2</Array>
        <Array type="real" n="2">-0.25 -2</Array></Matrix></Predictor></FactorList><PPMatrix>
        <PPCell value="1" predictorName="g" parameterName="p1"/>
        <PPCell value="2" predictorName="g" parameterName="p2"/></PPMatrix><ParamMatrix>
        <PCell parameterName="p0" beta="10"/><PCell parameterName="p1" beta="4"/>
        <PCell parameterName="p2" beta="1"/></ParamMatrix></GeneralRegressionModel></PMML>"#;
    for (category, expected) in [("1", 12.0), ("2", 11.0), ("3", 7.0)] {
        assert_eq!(predict(file, &[("g", Value::from(category))])["y"], expected);
    }
    assert_eq!(predict(file, &[("g", Value::from("4"))])["y"], Value::Null);
}

#[test]
fn a_replaced_value_reaches_the_fields_that_are_derived_from_it() {
    // As JPMML has it: 2 * 5 + 1.
    let segment = |field: &str, used: &str| {
        format!(
            r#"<Segment><True/><RegressionModel functionName="regression"><MiningSchema>{field}
            </MiningSchema><RegressionTable intercept="0"><NumericPredictor name="{used}" coefficient="1"/>
            </RegressionTable></RegressionModel></Segment>"#
        )
    };
    let replaced = segment(r#"<MiningField name="x" missingValueReplacement="5"/>"#, "d");
    let plain = segment(r#"<MiningField name="z"/>"#, "z");
    let file = format!(
        r#"<PMML version="4.4"><DataDictionary><DataField name="x" optype="continuous" dataType="double"/>
        <DataField name="z" optype="continuous" dataType="double"/></DataDictionary><TransformationDictionary>
        <DerivedField name="d" dataType="double"><Apply function="*"><FieldRef field="x"/>
        <Constant>2</Constant></Apply></DerivedField></TransformationDictionary>
        <MiningModel functionName="regression"><MiningSchema><MiningField name="x"/><MiningField name="z"/>
        </MiningSchema><Segmentation multipleModelMethod="sum">{replaced}{plain}</Segmentation>
        </MiningModel></PMML>"#
    );
    let z = ("z", Value::from(1.0));
    assert_eq!(predict(&file, std::slice::from_ref(&z))["predicted"], 11.0);
    assert_eq!(predict(&file, &[z, ("x", Value::from(1.0))])["predicted"], 3.0);
}

#[test]
fn sums_that_are_probabilities_of_two_classes_stay_between_0_and_1() {
    let file = r#"<PMML version="4.4"><DataDictionary><DataField name="x" optype="continuous" dataType="double"/>
        <DataField name="y" optype="categorical" dataType="string"><Value value="a"/><Value value="b"/>
        </DataField></DataDictionary><RegressionModel functionName="classification"><MiningSchema>
        <MiningField name="x"/><MiningField name="y" usageType="target"/></MiningSchema>
        <RegressionTable intercept="0" targetCategory="a"><NumericPredictor name="x" coefficient="1"/>
        </RegressionTable><RegressionTable intercept="0" targetCategory="b"/></RegressionModel></PMML>"#;
    for (x, a, class) in [(-0.5, 0.0, "b"), (0.25, 0.25, "b"), (1.7, 1.0, "a")] {
        let all = predict(file, &[("x", Value::from(x))]);
        assert_eq!((&all["probability_a"], &all["y"]), (&Value::from(a), &Value::from(class)));
        assert_eq!(all["probability_b"], 1.0 - a);
    }
}
