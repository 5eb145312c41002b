//! Simple TensorFlow Serving's pages with forms, and the targets of these forms.
//!
//! The pages have no scripts and show only model names and submitted values, escaped. A form calls the
//! function that handles `POST /`, without a request from the server to itself, and writes no files.

use bytes::Bytes;
use serde_json::json;

use super::html::escape;
use super::{SimpleApi, clients, describe};
use crate::sample;
use tensorserve_auth::Permission;
use tensorserve_codec::base64;
use tensorserve_codec::json::scan::Cursor;
use tensorserve_codec::json::write;
use tensorserve_core::engine::{Engine, ModelSpec, VersionSelector};
use tensorserve_protocol::url::field;
use tensorserve_protocol::{
    Answer, Body, BodyKind, Failure, Methods, Reply, RouteGroup, RoutedRequest, bounded,
};
use tensorserve_tensor::error::{Error, Result};

const HTML: &str = "text/html; charset=utf-8";
const FORM: &str = "application/x-www-form-urlencoded";

/// Allows only the server's own style and pictures within the page.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action \
                      'self'; base-uri 'none'; frame-ancestors 'none'";

const STYLE: &[u8] = include_bytes!("static/simple.css");
const ICON: &[u8] = include_bytes!("static/favicon.ico");

/// The largest picture that the response shows.
const LARGEST_PICTURE: usize = 2 << 20;

/// Adds the routes of the pages, of their forms and of their assets.
pub(super) fn add_routes(group: &mut RouteGroup<'_, SimpleApi>) {
    let (get, post) = (Methods::Get, Methods::Post);
    group
        .immediate(get, "/json_inference", Permission::Infer, |api, _| json_form(&api.engine))
        .simple_cors()
        .summary("Show a page with a form for JSON inference");
    group
        .immediate(get, "/image_inference", Permission::Infer, |api, _| image_form(&api.engine))
        .simple_cors()
        .summary("Show a page with a form for image inference");
    group
        .immediate(get, "/generate_clients", Permission::Infer, |api, _| client_form(&api.engine))
        .simple_cors()
        .summary("Show a page with a form for generated clients");
    group
        .route(post, "/run_json_inference", Permission::Infer, |api, request| {
            Box::pin(run_json(api, request))
        })
        .simple_cors()
        .summary("Run inference on the JSON form and show the result")
        .request(FORM, json!({ "type": "object" }));
    group
        .route(post, "/run_image_inference", Permission::Infer, |api, request| {
            Box::pin(run_image(api, request))
        })
        .body(|_| BodyKind::Form)
        .simple_cors()
        .summary("Run inference on the image form and show the result")
        .request("multipart/form-data", json!({ "type": "object" }));
    group
        .immediate(post, "/run_generate_clients", Permission::Infer, run_client)
        .simple_cors()
        .summary("Generate a client from the form and show its source code")
        .request(FORM, json!({ "type": "object" }));
    group
        .immediate(get, "/static/images/favicon.ico", Permission::Public, |_, _| {
            asset("image/x-icon", ICON)
        })
        .simple_cors()
        .summary("Return the icon of the pages");
    group
        .immediate(get, "/static/simple.css", Permission::Public, |_, _| {
            asset("text/css; charset=utf-8", STYLE)
        })
        .simple_cors()
        .summary("Return the style sheet of the pages");
}

fn asset(content_type: &'static str, content: &'static [u8]) -> Reply {
    Reply::ok(content_type, content).with_header("cache-control", "max-age=3600")
}

fn json_form(engine: &Engine) -> Reply {
    let model = first_model(engine);
    let data = sample_for(engine, &model);
    let fields =
        PageFields { model, version: String::new(), signature: "serving_default".to_owned() };
    page("JSON inference", &json_page(engine, &fields, &data, None))
}

fn image_form(engine: &Engine) -> Reply {
    let model = first_model(engine);
    let fields =
        PageFields { model, version: String::new(), signature: "serving_default".to_owned() };
    page("Image inference", &image_page(engine, &fields, None, None))
}

fn client_form(engine: &Engine) -> Reply {
    let model = first_model(engine);
    let fields = PageFields { model, version: String::new(), signature: String::new() };
    page("Generate clients", &client_page(engine, &fields, "bash", None))
}

async fn run_json(api: &SimpleApi, mut request: RoutedRequest<'_>) -> Answer {
    let form = request.take_bytes();
    let fields = PageFields::of(&form);
    let data = field(&form, "json_data").unwrap_or_default();
    let answer = match document(&fields, &data) {
        Ok(body) => api.infer_json(body.into(), request.start).await,
        Err(error) => Err(Failure::new(error, 400)),
    };
    let answer = super::rendered(answer);
    let shown = json_page(&api.engine, &fields, &data, Some(&answer.body));
    Ok(with_outcome(page("JSON inference", &shown), answer))
}

async fn run_image(api: &SimpleApi, request: RoutedRequest<'_>) -> Answer {
    let form = match request.body {
        Body::Form(form) => form,
        Body::Bytes(_) => Default::default(),
    };
    let form = super::images_of(form)?;
    let fields = PageFields {
        model: form.model_name.clone().unwrap_or_default(),
        version: form.model_version.clone().unwrap_or_default(),
        signature: form.signature_name.clone().unwrap_or_default(),
    };
    let picture = form.images.first().cloned();
    let answer = super::rendered(api.infer_images(form, request.start).await);
    let shown = image_page(&api.engine, &fields, picture.as_ref(), Some(&answer.body));
    Ok(with_outcome(page("Image inference", &shown), answer))
}

fn run_client(api: &SimpleApi, mut request: RoutedRequest<'_>) -> Reply {
    let form = request.take_bytes();
    let fields = PageFields::of(&form);
    let language = field(&form, "language").unwrap_or_default();
    let query =
        [("language", &language), ("signature", &fields.signature), ("version", &fields.version)];
    let query = query.into_iter().map(|(name, value)| (name.to_owned(), value.clone()));
    let answer = super::rendered(clients::source(api, &request.head, &fields.model, query));
    let shown = client_page(&api.engine, &fields, &language, Some(&answer.body));
    with_outcome(page("Generate clients", &shown), answer)
}

fn client_page(
    engine: &Engine,
    fields: &PageFields,
    language: &str,
    result: Option<&Bytes>,
) -> String {
    let choice = |(id, name): (&str, &str)| {
        let selected = if id == language { " selected" } else { "" };
        format!("<option value=\"{id}\"{selected}>{}</option>", escape(name))
    };
    let choices: String = clients::all_languages().map(choice).collect();
    let shown = match result {
        None => "<p>None yet.</p>".to_owned(),
        Some(source) => format!("<pre>{}</pre>", escape(&String::from_utf8_lossy(source))),
    };
    format!(
        "<h1>Select clients</h1>\n<form method=\"post\" action=\"/run_generate_clients\">\n\
         {}<label for=\"language\">Language</label>\
         <select id=\"language\" name=\"language\">{choices}</select>\n\
         <button>Generate</button>\n</form>\n<h2>Client</h2>\n{shown}\n",
        fields.html(engine)
    )
}

/// The form fields that select a model.
struct PageFields {
    model: String,
    version: String,
    signature: String,
}

impl PageFields {
    /// The fields of a submitted form.
    fn of(form: &[u8]) -> Self {
        PageFields {
            model: field(form, "model_name").unwrap_or_default(),
            version: field(form, "model_version").unwrap_or_default(),
            signature: field(form, "signature_name").unwrap_or_default(),
        }
    }

    fn html(&self, engine: &Engine) -> String {
        let options: String =
            engine.repository().ready_models().iter().map(|name| option(name)).collect();
        format!(
            "{}<datalist id=\"models\">{options}</datalist>\n{}{}",
            input("model_name", "Model name", &self.model, " list=\"models\""),
            input(
                "model_version",
                "Model version",
                &self.version,
                " placeholder=\"the highest\" inputmode=\"numeric\""
            ),
            input("signature_name", "Signature name", &self.signature, "")
        )
    }
}

fn input(name: &str, title: &str, value: &str, attributes: &str) -> String {
    let value = escape(value);
    format!(
        "<label for=\"{name}\">{title}</label>\
         <input id=\"{name}\" name=\"{name}\" value=\"{value}\"{attributes}>\n"
    )
}

/// The JSON document for `POST /` from a form.
fn document(fields: &PageFields, data: &str) -> Result<Vec<u8>> {
    let data = data.trim();
    let mut cursor = Cursor::new(data.as_bytes());
    let is_value = cursor.skip_value().is_ok() && cursor.remaining() == 0 && !data.is_empty();
    if !is_value {
        return Err(Error::invalid(format!("Invalid json data: {}", bounded(data))));
    }
    let mut body = b"{".to_vec();
    let texts = [
        ("model_name", &fields.model),
        ("model_version", &fields.version),
        ("signature_name", &fields.signature),
    ];
    for (name, text) in texts.into_iter().filter(|(_, text)| !text.trim().is_empty()) {
        write::string(name.as_bytes(), &mut body);
        body.push(b':');
        write::string(text.trim().as_bytes(), &mut body);
        body.push(b',');
    }
    body.extend_from_slice(b"\"data\":");
    body.extend_from_slice(data.as_bytes());
    body.push(b'}');
    Ok(body)
}

fn json_page(engine: &Engine, fields: &PageFields, data: &str, result: Option<&Bytes>) -> String {
    format!(
        "<h1>JSON inference</h1>\n<form method=\"post\" action=\"/run_json_inference\">\n\
         {}<label for=\"json_data\">JSON data</label>\
         <textarea id=\"json_data\" name=\"json_data\" spellcheck=\"false\">\n{}</textarea>\n\
         <button>Predict</button>\n</form>\n{}",
        fields.html(engine),
        escape(data),
        result_html(result)
    )
}

fn image_page(
    engine: &Engine,
    fields: &PageFields,
    picture: Option<&Bytes>,
    result: Option<&Bytes>,
) -> String {
    format!(
        "<h1>Image inference</h1>\n\
         <form method=\"post\" action=\"/run_image_inference\" enctype=\"multipart/form-data\">\n\
         {}<label for=\"image\">Image</label>\
         <input id=\"image\" name=\"image\" type=\"file\" accept=\"image/*\" required>\n\
         <button>Predict</button>\n</form>\n<h2>Predict image</h2>\n{}\n{}",
        fields.html(engine),
        picture.map_or("<p>None yet.</p>".to_owned(), picture_html),
        result_html(result)
    )
}

fn result_html(result: Option<&Bytes>) -> String {
    let shown = match result {
        None => "<p>None yet.</p>".to_owned(),
        Some(body) => format!("<pre>{}</pre>", escape(&String::from_utf8_lossy(body))),
    };
    format!("<h2>Predict result</h2>\n{shown}\n")
}

/// A picture within the page. The type comes from its bytes; formats that can contain scripts are
/// refused.
fn picture_html(image: &Bytes) -> String {
    let kind = match image.get(..12).unwrap_or_default() {
        [0x89, b'P', b'N', b'G', ..] => "png",
        [0xff, 0xd8, 0xff, ..] => "jpeg",
        [b'G', b'I', b'F', b'8', ..] => "gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => "webp",
        [b'B', b'M', ..] => "bmp",
        _ => return format!("<p>{} bytes that are not a picture.</p>", image.len()),
    };
    if image.len() > LARGEST_PICTURE {
        return format!("<p>A picture of {} bytes, too large to be shown here.</p>", image.len());
    }
    let mut text = Vec::new();
    base64::encode(image, &mut text);
    let text = String::from_utf8_lossy(&text);
    format!("<img alt=\"The picture that was sent\" src=\"data:image/{kind};base64,{text}\">")
}

/// The page, with the status of the response that it shows.
fn with_outcome(page: Reply, answer: Reply) -> Reply {
    Reply { status: answer.status, timing: answer.timing, error: answer.error, ..page }
}

fn page(title: &str, content: &str) -> Reply {
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} - tensorserve</title>\n\
         <link rel=\"icon\" href=\"/static/images/favicon.ico\">\n\
         <link rel=\"stylesheet\" href=\"/static/simple.css\">\n</head>\n<body>\n\
         <nav><a href=\"/\">Dashboard</a> <a href=\"/json_inference\">JSON inference</a> \
         <a href=\"/image_inference\">Image inference</a> \
         <a href=\"/generate_clients\">Generate clients</a></nav>\n\
         <main>\n{content}</main>\n</body>\n</html>\n"
    );
    Reply::ok(HTML, html)
        .with_header("content-security-policy", POLICY)
        .with_header("x-content-type-options", "nosniff")
        .with_header("referrer-policy", "no-referrer")
        .with_header("cache-control", "no-store")
}

/// The model that a form shows first.
fn first_model(engine: &Engine) -> String {
    let models = engine.repository().ready_models();
    let default = models.iter().find(|name| *name == "default");
    default.or(models.first()).map_or("default", String::as_str).to_owned()
}

/// Data that `model` accepts, or an empty object.
fn sample_for(engine: &Engine, model: &str) -> String {
    let handle = engine
        .repository()
        .resolve(&ModelSpec { name: model, choice: VersionSelector::Latest })
        .ok();
    let signature = handle.as_ref().and_then(|handle| describe::shown(handle, None).ok());
    signature.and_then(|s| sample::data(s).ok()).unwrap_or_else(|| "{}".to_owned())
}

fn option(value: &str) -> String {
    format!("<option value=\"{}\">", escape(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_breaks_out_of_the_page() {
        let text = escape("<img src=x onerror='a(\"b\")'>&");
        assert_eq!(text, "&lt;img src=x onerror=&#39;a(&quot;b&quot;)&#39;&gt;&amp;");
        let svg = picture_html(&Bytes::from_static(b"<svg onload=alert(1)>"));
        assert_eq!(svg, "<p>21 bytes that are not a picture.</p>");
        let png = picture_html(&Bytes::from_static(b"\x89PNG\"><script>"));
        assert!(png.contains("data:image/png;base64,iVBORyI+PHNjcmlwdD4="), "{png}");
        let large = picture_html(&Bytes::from([b"BM", &[0; LARGEST_PICTURE][..]].concat()));
        assert!(large.contains("too large"), "{large}");
    }

    #[test]
    fn a_form_becomes_one_request_and_no_more() {
        let fields = |model: &str| PageFields {
            model: model.to_owned(),
            version: "2".to_owned(),
            signature: String::new(),
        };
        let body = document(&fields("a\"b"), " {\"x\": [1]} ").expect("valid");
        let want = "{\"model_name\":\"a\\\"b\",\"model_version\":\"2\",\"data\":{\"x\": [1]}}";
        assert_eq!(String::from_utf8_lossy(&body), want);
        for wrong in ["", "{", "1}, \"model_name\": \"other\"", "{} {}", "\0"] {
            assert!(document(&fields("m"), wrong).is_err(), "{wrong:?}");
        }
    }
}
