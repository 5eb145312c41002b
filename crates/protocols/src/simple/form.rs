//! The image form (`multipart/form-data`) that `POST /` accepts.

use bytes::Bytes;

use super::find;
use crate::images;
use tensorserve_core::engine::{Engine, InferRequest, Resolver, SignatureRun};
use tensorserve_protocol::MultipartForm;
use tensorserve_tensor::error::{Error, Result};

/// The most bytes of a text field.
const LONGEST_TEXT: usize = 4096;

/// A form with images, by its fields. Other fields are ignored, as in the original.
#[derive(Debug, Default)]
pub(super) struct ImageForm {
    /// The files that are not empty: first those of the field `image`, then those of `images`.
    pub(super) images: Vec<Bytes>,
    pub(super) model_name: Option<String>,
    pub(super) model_version: Option<String>,
    pub(super) signature_name: Option<String>,
    pub(super) run_profile: Option<String>,
}

impl ImageForm {
    /// Reads the parts of a form.
    ///
    /// # Errors
    /// For a text field that is too long or not UTF-8.
    pub(super) fn of(form: MultipartForm) -> Result<Self> {
        let mut fields = ImageForm::default();
        let mut images = Vec::new();
        for (name, content) in form.parts {
            match name.as_str() {
                "image" => fields.images.push(content),
                "images" => images.push(content),
                "model_name" => fields.model_name = Some(text(&name, &content)?),
                "model_version" => fields.model_version = Some(text(&name, &content)?),
                "signature_name" => fields.signature_name = Some(text(&name, &content)?),
                "run_profile" => fields.run_profile = Some(text(&name, &content)?),
                _ => {}
            }
        }
        fields.images.append(&mut images);
        fields.images.retain(|image: &Bytes| !image.is_empty());
        Ok(fields)
    }

    /// Decodes the form. Its inputs always have the batch dimension.
    ///
    /// # Errors
    /// For a form without images, an unknown model, version or signature, and a signature that does
    /// not accept images.
    pub(super) fn decode(
        self,
        engine: &Engine,
        resolver: &mut Resolver<'_>,
    ) -> Result<(InferRequest, bool)> {
        if self.images.is_empty() {
            return Err(Error::invalid(
                "Invalid form-data: send a file in the field image or images",
            ));
        }
        let version = match self.model_version.as_deref().map(str::trim) {
            None | Some("") => None,
            Some(text) => Some(text.parse().map_err(|_| {
                Error::invalid(format!("Invalid model version: {text} is not a whole number"))
            })?),
        };
        let model = self.model_name.as_deref().filter(|name| !name.is_empty());
        let signature = self.signature_name.as_deref().filter(|name| !name.is_empty());
        let (handle, index) = find(engine, resolver, model, version, signature)?;
        let Some(declared) = handle.signatures().get(index) else {
            return Err(Error::internal("the signature does not exist"));
        };
        let input = images::tensor(declared, &self.images)?;
        let mut request = InferRequest::new(handle, SignatureRun::predict(index, vec![input]));
        request.profile = self.run_profile.as_deref() == Some("true");
        Ok((request, false))
    }
}

fn text(name: &str, content: &[u8]) -> Result<String> {
    if content.len() > LONGEST_TEXT {
        let message =
            format!("Invalid form-data: field {name} is longer than {LONGEST_TEXT} bytes");
        return Err(Error::invalid(message));
    }
    let text = String::from_utf8(content.to_vec());
    text.map_err(|_| Error::invalid(format!("Invalid form-data: field {name} is not UTF-8 text")))
}
