//! gRPC: a client that sends arbitrary messages, and connections that send arbitrary frames.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, BufMut};
use prost::Message;
use socket2::{Domain, Socket, Type};
use tensorserve_proto::serving::{ModelSpec, PredictRequest, PredictResponse};
use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

pub const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";

/// A codec that passes bytes through unchanged.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

/// A client with one connection.
pub struct Caller {
    runtime: Runtime,
    channel: Channel,
}

impl Caller {
    pub fn connect(address: SocketAddr) -> Result<Self, tonic::transport::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let endpoint = endpoint.connect_timeout(Duration::from_secs(60));
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Caller { runtime, channel })
    }

    /// Connects to a UNIX socket.
    pub fn connect_to_path(path: &Path) -> Result<Self, tonic::transport::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let endpoint = format!("unix://{}", path.display());
        let endpoint = Endpoint::from_shared(endpoint).expect("a path");
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Caller { runtime, channel })
    }

    /// Sends `message` unchanged.
    pub fn call(&self, path: &'static str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
        self.call_with(path, message, None)
    }

    /// Sends `message` unchanged, with an entry of metadata.
    pub fn call_with(
        &self,
        path: &'static str,
        message: Vec<u8>,
        metadata: Option<(&'static str, &str)>,
    ) -> Result<Vec<u8>, Status> {
        let mut request = Request::new(message);
        if let Some((name, value)) = metadata {
            request.metadata_mut().insert(name, value.parse().expect("text"));
        }
        self.runtime.block_on(async {
            let mut client = Grpc::new(self.channel.clone()).max_decoding_message_size(1 << 30);
            client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
            let path = PathAndQuery::from_static(path);
            Ok(client.unary(request, path, Raw).await?.into_inner())
        })
    }

    /// Sends `message` unchanged. Returns the response with its initial metadata.
    pub fn call_for_metadata(
        &self,
        path: &'static str,
        message: Vec<u8>,
    ) -> Result<(Vec<u8>, MetadataMap), Status> {
        self.runtime.block_on(async {
            let mut client = Grpc::new(self.channel.clone()).max_decoding_message_size(1 << 30);
            client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
            let path = PathAndQuery::from_static(path);
            let response = client.unary(Request::new(message), path, Raw).await?;
            let (metadata, message, _) = response.into_parts();
            Ok((message, metadata))
        })
    }

    /// Starts a call of any kind with this `authorization`. Returns its status code, or `Ok` after
    /// the first response message.
    pub fn begin(&self, path: &'static str, authorization: Option<&str>) -> Code {
        self.runtime.block_on(async {
            let mut client = Grpc::new(self.channel.clone());
            client.ready().await.expect("a connection");
            let mut request = Request::new(Vec::new());
            if let Some(value) = authorization {
                request.metadata_mut().insert("authorization", value.parse().expect("text"));
            }
            let path = PathAndQuery::from_static(path);
            let mut answers = match client.server_streaming(request, path, Raw).await {
                Ok(answers) => answers.into_inner(),
                Err(status) => return status.code(),
            };
            answers.message().await.map_or_else(|status| status.code(), |_| Code::Ok)
        })
    }

    /// Sends `message` unchanged. Returns the first message of the answer.
    pub fn first(&self, path: &'static str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
        self.runtime.block_on(async {
            let mut client = Grpc::new(self.channel.clone());
            client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
            let path = PathAndQuery::from_static(path);
            let answers = client.server_streaming(Request::new(message), path, Raw).await?;
            let first = answers.into_inner().message().await?;
            first.ok_or_else(|| Status::internal("there is no message"))
        })
    }

    /// Starts `calls` calls with an empty message, and keeps all of them open until `wait` returns.
    /// Returns their status codes: `Ok` for those that are answered with a stream.
    pub fn begin_many(&self, path: &'static str, calls: usize, wait: impl FnOnce()) -> Vec<Code> {
        let path = PathAndQuery::from_static(path);
        self.runtime.block_on(async {
            let (mut open, mut codes) = (Vec::new(), Vec::new());
            for _ in 0..calls {
                let mut client = Grpc::new(self.channel.clone());
                client.ready().await.expect("a connection");
                let request = Request::new(Vec::new());
                match client.server_streaming(request, path.clone(), Raw).await {
                    Ok(answers) => {
                        codes.push(Code::Ok);
                        open.push(answers);
                    }
                    Err(status) => codes.push(status.code()),
                }
            }
            wait();
            codes
        })
    }

    /// Starts a call, never sends its message, and returns the final status.
    pub fn call_without_message(&self, path: &'static str) -> Status {
        self.runtime.block_on(async {
            let mut client = Grpc::new(self.channel.clone());
            client.ready().await.expect("a connection");
            let never = Request::new(tokio_stream::pending::<Vec<u8>>());
            let path = PathAndQuery::from_static(path);
            let answer = client.client_streaming(never, path, Raw).await;
            answer.map(|_| ()).expect_err("call without a message must fail")
        })
    }

    /// Like [`Caller::call`], with gzip compression.
    pub fn call_with_gzip(&self, path: &'static str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
        self.runtime.block_on(async {
            let client = Grpc::new(self.channel.clone());
            let mut client = client.send_compressed(CompressionEncoding::Gzip);
            client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
            let path = PathAndQuery::from_static(path);
            Ok(client.unary(Request::new(message), path, Raw).await?.into_inner())
        })
    }

    /// Calls Predict on `half_plus_two` and checks the outputs.
    pub fn half_plus_two(&self) -> Result<(), Status> {
        let answer = self.call(PREDICT, half_plus_two().encode_to_vec())?;
        let answer = PredictResponse::decode(&answer[..]).expect("a message");
        let y = tensor_from_proto(&answer.outputs["y"]).expect("a tensor");
        assert_eq!(y.values::<f32>(), Some(&[2.5, 3.0, 4.5][..]));
        Ok(())
    }
}

/// A valid request.
pub fn half_plus_two() -> PredictRequest {
    let mut x = aligned_vec::<f32>(3);
    x.extend_from_slice(&[1.0, 2.0, 5.0]);
    let x = Tensor::from_vec(Shape::vector(3), x).expect("a tensor");
    PredictRequest {
        model_spec: Some(ModelSpec { name: "half_plus_two".to_owned(), ..ModelSpec::default() }),
        inputs: [("x".to_owned(), tensor_to_proto(&x, Form::Content))].into(),
        output_filter: Vec::new(),
    }
}

// Frame types and flags.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const CONTINUATION: u8 = 9;
pub const GO_AWAY: u8 = 7;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("length in range").to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// The header block of a call of Predict, without Huffman coding.
pub fn head() -> Vec<u8> {
    head_of(PREDICT)
}

/// The header block of a call of the method at `path`, without Huffman coding.
pub fn head_of(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (index, value) in [(4, path), (1, "h"), (31, "application/grpc")] {
        match index {
            ..15 => block.push(index),
            _ => block.extend_from_slice(&[15, index - 15]),
        }
        block.push(u8::try_from(value.len()).expect("length in range"));
        block.extend_from_slice(value.as_bytes());
    }
    block.extend_from_slice(b"\x00\x02te\x08trailers");
    block
}

/// A message with its gRPC length prefix, for DATA frames.
pub fn body(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("length in range").to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// A connection that sends the given bytes unchanged.
pub struct Frames(pub TcpStream);

impl Frames {
    /// Connects and sends the preface with `settings`.
    pub fn connect(address: SocketAddr, settings: &[u8]) -> Self {
        Frames::over(TcpStream::connect(address).expect("connects"), settings)
    }

    /// Connects from another address of this machine and sends the preface without settings.
    pub fn connect_from(client: Ipv4Addr, address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((client, 0)).into()).expect("an address of the loopback");
        socket.connect(&address.into()).expect("connects");
        Frames::over(socket.into(), &[])
    }

    fn over(stream: TcpStream, settings: &[u8]) -> Self {
        stream.set_nodelay(true).expect("socket option");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("socket option");
        stream.set_write_timeout(Some(Duration::from_secs(2))).expect("socket option");
        let mut frames = Frames(stream);
        frames.send(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()).expect("sent");
        frames
    }

    /// The type and the payload of the next frame.
    pub fn next(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload)?;
        Ok((head[3], payload))
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Reads up to the next frame of this type.
    pub fn until(&mut self, kind: u8) {
        while self.next().expect("a frame").0 != kind {}
    }

    /// The types of all frames until the server closes, and the error code of the last GOAWAY.
    pub fn until_closed(&mut self) -> io::Result<(Vec<u8>, Option<u32>)> {
        let (mut kinds, mut reason) = (Vec::new(), None);
        loop {
            let (kind, payload) = match self.next() {
                Ok(frame) => frame,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => return Ok((kinds, reason)),
            };
            kinds.push(kind);
            if kind == GO_AWAY {
                reason = Some(u32::from_be_bytes([payload[4], payload[5], payload[6], payload[7]]));
            }
        }
    }
}
