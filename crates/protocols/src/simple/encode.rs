//! The JSON of a response to `POST /`.

use super::profile;
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_core::engine::{InferResponse, InputStyle};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor};

/// The member of a response that holds the text of its profile.
const PROFILE: &str = "__PROFILE__";

/// Writes a response: an object with a member for each output. The outputs have no batch dimension if
/// the request had none (`one_row`).
///
/// # Errors
/// [`Code::Unimplemented`] for an output that JSON cannot hold.
pub(super) fn response(one_row: bool, response: InferResponse) -> Result<Vec<u8>> {
    let profile = response.profile.as_deref().map(profile::text);
    let (version, mut run) = response.into_single();
    if one_row {
        run.outputs.iter_mut().for_each(|output| *output = output.row(0));
    }
    let signature = version.signatures().get(run.signature);
    let mut body = Vec::new();
    if version.platform().input_style == InputStyle::Records {
        // The format of Openscoring, which the original uses for PMML: the ID that the request would
        // have in a batch, and the outputs in an object of their own.
        body.extend_from_slice(b"{\"id\":null,\"result\":");
        outputs(signature, &run.outputs, profile.as_deref(), &mut body)?;
        body.push(b'}');
    } else {
        outputs(signature, &run.outputs, profile.as_deref(), &mut body)?;
    }
    body.push(b'\n');
    Ok(body)
}

/// Outputs as an object: keys sorted, no white space.
fn outputs(
    signature: Option<&Signature>,
    outputs: &[Tensor],
    mut profile: Option<&str>,
    body: &mut Vec<u8>,
) -> Result<()> {
    let style = Style { layout: JsonLayout::Compact, floats: Floats::Python, texts: Texts::Lossy };
    let specs = signature.map_or(&[][..], |signature| &signature.outputs);
    body.push(b'{');
    for (spec, output) in specs.iter().zip(outputs) {
        if let Some(text) = profile.take_if(|_| spec.alias.as_str() > PROFILE) {
            member(PROFILE, body);
            write::string(text.as_bytes(), body);
        }
        member(&spec.alias, body);
        let no_form = |dtype| {
            let message =
                format!("output {:?} is of type {dtype}, which JSON cannot hold", spec.alias);
            Error::new(Code::Unimplemented, message)
        };
        write::tensor(output, style, 0, body).map_err(|error| error.into_error(no_form))?;
    }
    if let Some(text) = profile {
        member(PROFILE, body);
        write::string(text.as_bytes(), body);
    }
    body.push(b'}');
    Ok(())
}

/// Begins the next member of the object in `body`.
fn member(name: &str, body: &mut Vec<u8>) {
    if body.last() != Some(&b'{') {
        body.push(b',');
    }
    write::string(name.as_bytes(), body);
    body.push(b':');
}
