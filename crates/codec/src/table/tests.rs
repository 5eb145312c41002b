use super::*;

fn column(alias: &str, dtype: DType) -> TensorSpec {
    TensorSpec::new(alias, dtype, &[-1]).with_missing_values()
}

fn passengers() -> Signature {
    let inputs = vec![column("age", DType::Double), column("sex", DType::String)];
    let mut signature = Signature::only(inputs, Vec::new());
    signature.unused_columns.push("name".to_owned());
    signature
}

fn strings(tensor: &Tensor) -> Vec<&[u8]> {
    tensor.strings().expect("strings").iter().collect()
}

#[test]
fn columns_have_the_names_in_the_first_line() {
    let text = b"sex,age\r\nmale,22\n,\n\"fe,male\", 30.5 \n";
    let tensors = read(text, &passengers(), Header::Auto, 1000).expect("a table");
    let age = tensors[0].values::<f64>().expect("doubles");
    assert_eq!((age[0], age[1].is_nan(), age[2]), (22.0, true, 30.5));
    assert_eq!(strings(&tensors[1]), [&b"male"[..], b"", b"fe,male"]);
    // A column that is not there is missing in each row.
    let tensors = read(b"age\n1\n2\n", &passengers(), Header::Auto, 1000).expect("a table");
    assert_eq!(strings(&tensors[1]), [b"", b""]);
    // One that the model does not use is not read.
    let text = b"name,age,sex\n\"Astor, Mrs.\",18,female\n";
    let tensors = read(text, &passengers(), Header::Auto, 1000).expect("a table");
    assert_eq!(strings(&tensors[1]), [b"female"]);
}

#[test]
fn wrong_tables_are_refused_with_their_place() {
    let refused = |text: &str| {
        let error = read(text.as_bytes(), &passengers(), Header::Auto, 1000).expect_err(text);
        error.message().to_owned()
    };
    assert_eq!(
        refused("22,male\n"),
        "the first line must have the names of the columns: the model has no input \"22\"; its inputs are \
         \"age\", \"sex\""
    );
    assert_eq!(refused("age,sex\n\nx,y\n"), "line 3, column age: \"x\" is not a number");
    assert_eq!(refused("age,sex\n1\n"), "line 2 has 1 fields; the columns are 2");
    let mut signature = passengers();
    signature.inputs[1].takes_missing = false;
    let refused_by = |text: &str| {
        let error = read(text.as_bytes(), &signature, Header::Auto, 1000).expect_err(text);
        error.message().to_owned()
    };
    assert_eq!(
        refused_by("age,sex\n1,\n"),
        "line 2, column sex: a value is missing, which the model does not accept there"
    );
    assert_eq!(refused_by("age\n1\n"), "the table lacks the column \"sex\"");
    assert_eq!(refused("age,age\n1,2\n"), "the first line has the column \"age\" twice");
    assert_eq!(refused(""), "the table has no lines");
    assert!(refused(&format!("age\n{}", "1\n".repeat(200))).contains("more than 1000 bytes"));
}

#[test]
fn a_matrix_may_have_names() {
    let matrix = TensorSpec::new("data", DType::Float, &[-1, 3]).with_missing_values();
    let matrix = Signature::only(vec![matrix], Vec::new());
    assert!(can_read(&matrix.inputs));
    for text in ["a,b,c\n1,,3\n4,NaN,6\n", "1,,3\n4,nan,6"] {
        let tensors = read(text.as_bytes(), &matrix, Header::Auto, 1000).expect("a matrix");
        assert_eq!(tensors[0].shape().dims(), [2, 3]);
        let values = tensors[0].values::<f32>().expect("floats");
        assert_eq!((values[0], values[2], values[3]), (1.0, 3.0, 4.0));
        assert!(values[1].is_nan() && values[4].is_nan());
    }
    let error = read(b"1,2,3\n1,x,3", &matrix, Header::Auto, 1000).expect_err("text");
    assert_eq!(error.message(), "line 2, column 2: \"x\" is not a number");
    let error = read(b"1,2,3\n1,3", &matrix, Header::Auto, 1000).expect_err("too short");
    assert_eq!(error.message(), "line 2 has 2 fields, the first row 3");
}

#[test]
fn the_only_column_needs_no_name() {
    let text = Signature::only(vec![column("text", DType::String)], Vec::new());
    for table in ["text\na b\nc", "a b\nc"] {
        let tensors = read(table.as_bytes(), &text, Header::Auto, 1000).expect("a column");
        assert_eq!(strings(&tensors[0]), [&b"a b"[..], b"c"]);
    }
}

#[test]
fn a_line_with_one_text_is_no_header() {
    let matrix = TensorSpec::new("data", DType::Double, &[-1, 4]).with_missing_values();
    let mut matrix = Signature::only(vec![matrix], Vec::new());
    let rows = |matrix: &Signature, text: &str, header| {
        let tensors = read(text.as_bytes(), matrix, header, 1000);
        tensors.map(|tensors| tensors[0].values::<f64>().expect("doubles").to_vec())
    };
    let found = rows(&matrix, "1,2,NA,4\n1,2,3,null", Header::Auto).expect("two rows");
    assert!(found[2].is_nan() && found[7].is_nan() && found.len() == 8);
    let found = rows(&matrix, "NA,,#N/A,nan\n", Header::Auto).expect("a row");
    assert!(found.len() == 4 && found.iter().all(|value| value.is_nan()));
    let error = rows(&matrix, "1,2,x,4\n1,2,3,4\n", Header::Auto).expect_err("a text");
    assert_eq!(error.message(), "line 1, column 3: \"x\" is not a number");
    assert_eq!(rows(&matrix, "1,2,x,4\n1,2,3,4\n", Header::Present).expect("a row").len(), 4);
    let error = rows(&matrix, "a,b,c,d\n1,2,3,4\n", Header::Absent).expect_err("texts");
    assert_eq!(error.message(), "line 1, column 1: \"a\" is not a number");
    let found = rows(&matrix, "+1,.5,True,-inf\n", Header::Auto).expect("a row");
    assert_eq!(found, [1.0, 0.5, 1.0, f64::NEG_INFINITY]);
    let error = rows(&matrix, "a,b,c,d\n", Header::Auto).expect_err("no rows");
    assert_eq!(error.message(), "the table has no rows");

    // Names that are numbers are a header if all of them are there.
    matrix.inputs[0].column_names = ["2", "3", "0", "1"].map(str::to_owned).to_vec();
    let found = rows(&matrix, "0,1,2,3\n7,8,5,6\n", Header::Auto).expect("a row");
    assert_eq!(found, [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(rows(&matrix, "0,1,2,4\n7,8,5,6\n", Header::Auto).expect("rows").len(), 8);
}

#[test]
fn names_put_a_matrix_into_the_order_of_the_model() {
    let names = ["income", "age", "debt"].map(str::to_owned);
    let matrix = TensorSpec::new("data", DType::Float, &[-1, 3]).with_missing_values();
    let matrix = Signature::only(vec![matrix.with_column_names(&names)], Vec::new());
    for text in [
        "debt, age ,income\n3,2,1\n6,5,4\n",
        "income,age,debt\n1,2,3\n4,5,6",
        "1,2,3\n4,5,6\n",
        "\"age\",\"debt\",\"income\"\r\n\"2\",\"3\",\"1\"\r\n\r\n5,6,4\r\n",
    ] {
        let tensors = read(text.as_bytes(), &matrix, Header::Auto, 1000).expect(text);
        let values = tensors[0].values::<f32>().expect("floats");
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "{text}");
    }
    let refused = |text: &str, header| {
        let error = read(text.as_bytes(), &matrix, header, 1000).expect_err(text);
        error.message().to_owned()
    };
    let wrong = refused("debt,Age,income\n3,2,1\n", Header::Auto);
    assert!(wrong.contains("\"Age\"") && wrong.contains("age"), "{wrong}");
    assert!(refused("debt,age,1\n3,2,1\n", Header::Present).contains("\"1\""));
    assert_eq!(refused("debt,age\n3,2\n", Header::Auto), "the table lacks the column \"income\"");
    assert_eq!(
        refused("debt,age,age\n3,2,1\n", Header::Auto),
        "the first line has the column \"age\" twice"
    );
    assert_eq!(
        refused("debt,age,income\n3,2,1\n3,2\n", Header::Auto),
        "line 3 has 2 fields, the header 3"
    );
}

#[test]
fn columns_of_other_types_need_a_header() {
    let spec = |alias, dtype, dims: &[i64]| TensorSpec::new(alias, dtype, dims);
    let inputs = vec![
        spec("a", DType::Int64, &[-1, 1]),
        spec("b", DType::Bool, &[-1]),
        spec("c", DType::String, &[-1, 1]),
    ];
    let signature = Signature::only(inputs, Vec::new());
    assert!(has_columns(&signature.inputs) && !can_read(&signature.inputs));
    let text = b"c,b,a\n\"x\ny\",True,9007199254740993\n z,0,-1\n";
    let tensors = read(text, &signature, Header::Present, 1000).expect("a table");
    assert_eq!(tensors[0].shape().dims(), [2, 1]);
    assert_eq!(tensors[0].values::<i64>().expect("integers"), [9007199254740993, -1]);
    assert_eq!(strings(&tensors[2]), [&b"x\ny"[..], b" z"]);
    let refused = |text: &str, header| {
        let error = read(text.as_bytes(), &signature, header, 1000).expect_err(text);
        error.message().to_owned()
    };
    let wrong = refused("a,b,c\n1.5,1,x\n", Header::Present);
    assert_eq!(wrong, "line 2, column a: \"1.5\" is not an integer");
    assert!(refused("a,b,c\n1,2,x\n", Header::Present).contains("column b"), "2 is no truth");
    assert!(refused("a,b,c\n,1,x\n", Header::Present).contains("a value is missing"));
    assert!(refused("a,b\n1,1\n", Header::Present).contains("lacks the column \"c\""));
    assert!(refused("1,1,x\n", Header::Absent).contains("a, b, c"));
}
