//! A full snapshot as one body, as the control service's `/snapshot` answers it: its messages one after the other, each
//! after its length.

use prost::bytes::{Buf, Bytes};
use prost::encoding::encode_varint;
use prost::{DecodeError, Message};

use crate::v1;

/// Media type of the body.
pub const MEDIA_TYPE: &str =
    "application/x-protobuf; messageType=\"kinference.snapshot.v1.ControlMessage\"; delimited=true";

/// Encoded messages as one body.
#[must_use]
pub fn join(messages: &[Bytes]) -> Vec<u8> {
    let mut body = Vec::with_capacity(messages.iter().map(|message| message.len() + 10).sum());
    for message in messages {
        encode_varint(message.len() as u64, &mut body);
        body.extend_from_slice(message);
    }
    body
}

/// The messages of a body.
///
/// # Errors
/// When the body is not one that [`join`] makes.
pub fn split(mut body: impl Buf) -> Result<Vec<v1::ControlMessage>, DecodeError> {
    let mut messages = Vec::new();
    while body.has_remaining() {
        messages.push(v1::ControlMessage::decode_length_delimited(&mut body)?);
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::control_message::Message as Content;

    #[test]
    fn what_is_joined_is_split_again_and_anything_else_is_an_error() {
        let part = |part| v1::ControlMessage {
            message: Some(Content::Snapshot(v1::SnapshotPart {
                epoch: 300,
                part,
                last: part == 1,
                ..Default::default()
            })),
        };
        let messages = [part(0), part(1)];
        let body = join(&messages.each_ref().map(|message| Bytes::from(message.encode_to_vec())));
        assert_eq!(split(body.as_slice()).unwrap(), messages);
        assert_eq!(split([].as_slice()).unwrap(), []);
        assert!(split(&body[..body.len() - 1]).is_err());
        assert!(split(b"<html>".as_slice()).is_err());
    }
}
