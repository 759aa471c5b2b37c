//! A gRPC codec whose outgoing messages are encoded already, so that one encoding serves every stream.

use bytes::{BufMut, Bytes};
use kinference_protocol::v1::FilterMessage;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Sends encoded `ControlMessage`s as they are, receives `FilterMessage`s.
#[derive(Debug, Clone, Copy, Default)]
pub struct PreEncoded;

impl Codec for PreEncoded {
    type Encode = Bytes;
    type Decode = FilterMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for PreEncoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.len());
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for PreEncoded {
    type Item = FilterMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<FilterMessage>, Status> {
        FilterMessage::decode(buffer)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("not a FilterMessage of this protocol version: {error}")))
    }
}
