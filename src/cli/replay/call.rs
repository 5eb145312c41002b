//! Calls over gRPC, one at a time on a connection.

use std::error::Error as _;
use std::time::Duration;

use prost::bytes::{Buf, BufMut, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::cli::bench::target::ModelTarget;
use tensorserve_tensor::error::{Error, Result};

/// The initial metadata with the receipt of an answer.
const RECEIPT: &str = "x-tensorserve-receipt";

/// Passes messages on as they are.
#[derive(Clone, Copy, Default)]
struct AsBytes;

impl Codec for AsBytes {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = AsBytes;
    type Decoder = AsBytes;

    fn encoder(&mut self) -> AsBytes {
        AsBytes
    }

    fn decoder(&mut self) -> AsBytes {
        AsBytes
    }
}

impl Encoder for AsBytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for AsBytes {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// A connection to a server.
pub(super) struct ReplayConnection {
    client: Grpc<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
    timeout: Duration,
}

/// What became of a call.
pub(super) enum CallOutcome {
    Answered {
        message: Bytes,
        receipt: Option<String>,
    },
    /// The status, and its text.
    Failed(String, String),
    /// The connection broke.
    Gone(String),
}

impl ReplayConnection {
    /// Connects.
    ///
    /// # Errors
    /// If there is no server of gRPC.
    pub(super) async fn open(
        target: &ModelTarget,
        authorization: Option<&str>,
        timeout: Duration,
    ) -> Result<Self> {
        let address = target.address;
        let failed = |e: tonic::transport::Error| {
            let why = e.source().map_or_else(|| e.to_string(), ToString::to_string);
            Error::unavailable(format!("grpc://{address}: {why}")).with_source(e)
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
        let channel = endpoint.connect_timeout(timeout).connect().await.map_err(failed)?;
        let client = Grpc::new(channel)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let wrong =
            |_| Error::invalid("the credentials contain characters that no header can have");
        let authorization = authorization.map(str::parse).transpose().map_err(wrong)?;
        Ok(ReplayConnection { client, authorization, timeout })
    }

    /// Sends a message to the method at `path`.
    pub(super) async fn call(&mut self, path: &'static str, message: Vec<u8>) -> CallOutcome {
        let timeout = self.timeout;
        match tokio::time::timeout(timeout, self.answer(path, message)).await {
            Ok(Ok((message, receipt))) => CallOutcome::Answered { message, receipt },
            // What the server says has no cause here.
            Ok(Err(status)) if status.source().is_some() => {
                let cause = status.source().map(ToString::to_string).unwrap_or_default();
                CallOutcome::Gone(format!("{}: {cause}", status.message()))
            }
            Ok(Err(status)) => {
                CallOutcome::Failed(format!("{:?}", status.code()), status.message().to_owned())
            }
            Err(_) => {
                let text = format!("no answer within {} s", timeout.as_secs_f64());
                CallOutcome::Failed("Timeout".to_owned(), text)
            }
        }
    }

    async fn answer(
        &mut self,
        path: &'static str,
        message: Vec<u8>,
    ) -> Result<(Bytes, Option<String>), Status> {
        let mut request = Request::new(message);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        let broken = |e: tonic::transport::Error| Status::from_error(Box::new(e));
        self.client.ready().await.map_err(broken)?;
        let path = PathAndQuery::from_static(path);
        let response = self.client.unary(request, path, AsBytes).await?;
        let receipt = response.metadata().get(RECEIPT).and_then(|value| value.to_str().ok());
        let receipt = receipt.map(str::to_owned);
        Ok((response.into_inner(), receipt))
    }
}
