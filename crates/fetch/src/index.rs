//! Finds a file in a package index: PEP 503 (HTML) and PEP 691 (JSON).

use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

use crate::client::{FailedRequest, IndexClient, shown};
use crate::pins::Wheel;

/// The forms of a page, in the order of preference, as pip asks for them.
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, \
                      application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01";

/// The URL of `wheel` in the index at `index`; `None` if the index does not have it.
///
/// # Errors
/// If the page cannot be read, or if the index has another file under this name.
pub(crate) fn find(
    client: &IndexClient,
    index: &Url,
    wheel: &Wheel,
) -> Result<Option<Url>, FailedRequest> {
    let page = project_page(index, &wheel.project());
    let response = match client.get(&page, &[("Accept", ACCEPT)]) {
        Err(failed) if failed.status == Some(404) => return Ok(None),
        response => response?,
    };
    let (url, is_json) = (response.url.clone(), response.has_type("json"));
    let text = response.text()?;
    let links = if is_json {
        json_links(&text, &url).map_err(|e| {
            FailedRequest::permanent(format!("{}: the page is not valid JSON: {e}", shown(&url)))
        })?
    } else {
        html_links(&text, &url)
    };
    let Some(link) = links.into_iter().find(|link| file_name(link) == wheel.file) else {
        return Ok(None);
    };
    let published = link.fragment().and_then(|fragment| fragment.strip_prefix("sha256="));
    match published {
        Some(hash) if !hash.eq_ignore_ascii_case(&wheel.sha256) => {
            Err(FailedRequest::permanent(format!(
                "{} is not the file that this version of tensorserve expects: the index publishes SHA-256 \
             {hash}, expected {}",
                shown(&link),
                wheel.sha256
            )))
        }
        _ => Ok(Some(link)),
    }
}

/// The page of a project, with the `/` at its end that indexes redirect to.
fn project_page(index: &Url, project: &str) -> Url {
    let mut page = index.clone();
    if let Ok(mut segments) = page.path_segments_mut() {
        segments.pop_if_empty().push(project).push("");
    }
    page
}

/// The name of the file at `url`.
fn file_name(url: &Url) -> String {
    let last = url.path().rsplit('/').next().unwrap_or_default();
    percent_decode_str(last).decode_utf8_lossy().into_owned()
}

/// The links of a JSON page, with the hash as the fragment, as HTML pages have it.
fn json_links(text: &str, page: &Url) -> Result<Vec<Url>, serde_json::Error> {
    let json: Value = serde_json::from_str(text)?;
    let files = json.get("files").and_then(Value::as_array).into_iter().flatten();
    Ok(files
        .filter_map(|file| {
            let mut url = page.join(file.get("url")?.as_str()?).ok()?;
            let hash = file.pointer("/hashes/sha256").and_then(Value::as_str);
            url.set_fragment(hash.map(|hash| format!("sha256={hash}")).as_deref());
            Some(url)
        })
        .collect())
}

/// The links of an HTML page.
fn html_links(text: &str, page: &Url) -> Vec<Url> {
    let base = tags(text, "base").find_map(|tag| page.join(&attribute(tag, "href")?).ok());
    let base = base.as_ref().unwrap_or(page);
    tags(text, "a").filter_map(|tag| base.join(&attribute(tag, "href")?).ok()).collect()
}

/// The attributes of each tag `name`, as text.
fn tags<'t>(text: &'t str, name: &'static str) -> impl Iterator<Item = &'t str> {
    text.split('<').skip(1).filter_map(move |tag| {
        let (first, rest) = tag.split_at_checked(name.len())?;
        let is_called = first.eq_ignore_ascii_case(name) && rest.starts_with(char::is_whitespace);
        if is_called { Some(rest) } else { None }
    })
}

/// The value of an attribute, in quotes of either kind or without.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let mut rest = tag;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '/');
        let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '=' | '>'))?;
        let (found, after) = rest.split_at(end);
        let after = after.trim_start();
        let Some(value) = after.strip_prefix('=').map(str::trim_start) else {
            if after.starts_with('>') {
                return None;
            }
            rest = after;
            continue;
        };
        let (value, after) = match value.chars().next()? {
            quote @ ('"' | '\'') => value.get(1..)?.split_once(quote)?,
            _ => value.split_at(value.find(|c: char| c.is_whitespace() || c == '>')?),
        };
        if found.eq_ignore_ascii_case(name) {
            return Some(unescaped(value));
        }
        rest = after;
    }
}

/// The character references that a URL may need.
fn unescaped(value: &str) -> String {
    let value = value.replace("&#x2F;", "/").replace("&#47;", "/").replace("&quot;", "\"");
    value.replace("&#39;", "'").replace("&#43;", "+").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    #[test]
    fn the_page_of_a_project_is_below_the_index() {
        for index in ["https://host/simple", "https://host/simple/"] {
            let page = project_page(&url(index), "tensorflow-cpu");
            assert_eq!(page.as_str(), "https://host/simple/tensorflow-cpu/");
        }
        let page = project_page(&url("https://host/api?token=1"), "x");
        assert_eq!(page.as_str(), "https://host/api/x/?token=1");
    }

    #[test]
    fn links_of_html_pages_are_resolved() {
        let page = url("https://host/simple/x/");
        let text = "<!DOCTYPE html><html><head><link href='style.css'></head><body>
            <a href=\"../../files/x-1%2Bcpu.whl#sha256=ab\" data-requires-python=\"&gt;=3.9\">x</a>
            <A data-yanked HREF='/abs/x-2.whl?a=1&amp;b=2'>x-2</A><abbr title=a>b</abbr>
            <a href=//other/x-3.whl>x</a><a>none</a><a href=\"broken";
        let links: Vec<String> = html_links(text, &page).iter().map(Url::to_string).collect();
        let expected = [
            "https://host/files/x-1%2Bcpu.whl#sha256=ab",
            "https://host/abs/x-2.whl?a=1&b=2",
            "https://other/x-3.whl",
        ];
        assert_eq!(links, expected);
        assert_eq!(file_name(&url(&links[0])), "x-1+cpu.whl");
        let based = html_links("<base href=\"/root/\"><a href=\"x.whl\">x</a>", &page);
        assert_eq!(based[0].as_str(), "https://host/root/x.whl");
    }

    #[test]
    fn links_of_json_pages_have_their_hashes() {
        let text = r#"{"meta": {"api-version": "1.1"}, "files": [{"filename": "x.whl",
            "url": "../../f/x.whl", "hashes": {"sha256": "ab"}}, {"url": 3}, {"url": "y.whl"}]}"#;
        let links = json_links(text, &url("https://host/simple/x/")).expect("JSON");
        let links: Vec<&str> = links.iter().map(Url::as_str).collect();
        assert_eq!(links, ["https://host/f/x.whl#sha256=ab", "https://host/simple/x/y.whl"]);
        assert!(json_links("<html>", &url("https://host/")).is_err());
    }
}
