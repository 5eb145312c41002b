//! The paths of Simple TensorFlow Serving's pages.

/// A page, or what a page's form is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The form for JSON.
    JsonForm,
    /// The form for an image.
    ImageForm,
    /// Where the form for JSON is sent.
    RunJson,
    /// Where the form for an image is sent.
    RunImage,
    /// What pages are made of: a style and a picture.
    Asset,
    /// A path of these with another method.
    OtherMethod,
}

/// The route of a request; `None` if it is none of these.
#[must_use]
pub fn route(method: &str, path: &str) -> Option<Route> {
    let (wanted, route) = match path {
        "/json_inference" => ("GET", Route::JsonForm),
        "/image_inference" => ("GET", Route::ImageForm),
        "/run_json_inference" => ("POST", Route::RunJson),
        "/run_image_inference" => ("POST", Route::RunImage),
        "/static/images/favicon.ico" | "/static/simple.css" => ("GET", Route::Asset),
        _ => return None,
    };
    let is_it = method == wanted || (method == "HEAD" && wanted == "GET");
    Some(if is_it { route } else { Route::OtherMethod })
}

impl Route {
    /// The methods that `path`, one of these, takes.
    #[must_use]
    pub fn allowed(path: &str) -> &'static str {
        if path.starts_with("/run_") { "POST" } else { "GET, HEAD" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_method() {
        assert_eq!(route("HEAD", "/json_inference"), Some(Route::JsonForm));
        assert_eq!(route("POST", "/run_image_inference"), Some(Route::RunImage));
        assert_eq!(route("GET", "/run_json_inference"), Some(Route::OtherMethod));
        assert_eq!(route("GET", "/static/../secret"), None);
        assert_eq!(route("GET", "/"), None);
    }
}
