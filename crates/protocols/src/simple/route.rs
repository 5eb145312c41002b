//! The paths of Simple TensorFlow Serving's pages.

/// A page, or what a page's form is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The form for JSON.
    JsonForm,
    /// The form for an image.
    ImageForm,
    /// The form for clients.
    ClientForm,
    /// Where the form for JSON is sent.
    RunJson,
    /// Where the form for an image is sent.
    RunImage,
    /// Where the form for clients is sent.
    RunClient,
    /// What pages are made of: a style and a picture.
    Asset,
}

/// The page at `path`, and whether it takes `method`; `None` if there is none.
#[must_use]
pub fn page(method: &str, path: &str) -> Option<(Page, bool)> {
    let (wanted, page) = match path {
        "/json_inference" => ("GET", Page::JsonForm),
        "/image_inference" => ("GET", Page::ImageForm),
        "/generate_clients" => ("GET", Page::ClientForm),
        "/run_generate_clients" => ("POST", Page::RunClient),
        "/run_json_inference" => ("POST", Page::RunJson),
        "/run_image_inference" => ("POST", Page::RunImage),
        "/static/images/favicon.ico" | "/static/simple.css" => ("GET", Page::Asset),
        _ => return None,
    };
    Some((page, method == wanted || (method == "HEAD" && wanted == "GET")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_method() {
        assert_eq!(page("HEAD", "/json_inference"), Some((Page::JsonForm, true)));
        assert_eq!(page("POST", "/run_image_inference"), Some((Page::RunImage, true)));
        assert_eq!(page("GET", "/run_json_inference"), Some((Page::RunJson, false)));
        assert_eq!(page("GET", "/static/../secret"), None);
        assert_eq!(page("GET", "/"), None);
    }
}
