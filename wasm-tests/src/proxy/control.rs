//! The control service's side of the streams.

use kinference_protocol::v1::{self, filter_message::Message};
use prost::Message as _;

use super::Proxy;
use crate::process::Control;
use crate::vm::ROOT;

impl Proxy {
    /// How the control service's cluster behaves from now on. Streams that are open stay so.
    pub fn set_control(&mut self, control: Control) {
        self.process.borrow_mut().control = control;
    }

    fn token(&self, vm: usize) -> Option<u32> {
        let process = self.process.borrow();
        let place = process.streams.iter().rposition(|stream| stream.vm == vm && stream.open)?;
        u32::try_from(place + 1).ok()
    }

    /// A VM has a stream.
    #[must_use]
    pub fn is_connected(&self, vm: usize) -> bool {
        self.token(vm).is_some()
    }

    /// All VMs have streams.
    #[must_use]
    pub fn all_connected(&self) -> bool {
        (0..self.vms.len()).all(|vm| self.is_connected(vm))
    }

    /// Streams that a VM has opened so far, each by "cluster service/method".
    #[must_use]
    pub fn streams(&self, vm: usize) -> Vec<String> {
        let process = self.process.borrow();
        let streams = process.streams.iter().filter(|stream| stream.vm == vm);
        streams.map(|stream| format!("{} {}", stream.cluster, stream.method)).collect()
    }

    /// Sends a message to a VM. False when it has no stream.
    pub fn push(&mut self, vm: usize, message: &v1::ControlMessage) -> bool {
        self.push_bytes(vm, message.encode_to_vec())
    }

    /// Sends messages to all VMs, which must have streams.
    pub fn push_all(&mut self, messages: &[v1::ControlMessage]) -> bool {
        let vms = 0..self.vms.len();
        vms.flat_map(|vm| messages.iter().map(move |message| (vm, message))).all(|(vm, message)| self.push(vm, message))
    }

    /// Sends bytes that may not even be a message.
    pub fn push_bytes(&mut self, vm: usize, bytes: Vec<u8>) -> bool {
        let Some(token) = self.token(vm) else { return false };
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.vms[vm].state().message = bytes;
        self.vms[vm].callback::<_, ()>(ROOT, "proxy_on_grpc_receive", (ROOT, token, length));
        self.vms[vm].state().message = Vec::new();
        true
    }

    /// Ends a VM's stream from the control service's side.
    pub fn close(&mut self, vm: usize, status: u32) {
        if let Some(token) = self.token(vm) {
            if let Some(stream) = self.process.borrow_mut().stream(token) {
                stream.closing = Some(status);
            }
            self.tell_closed_streams();
        }
    }

    pub(super) fn tell_closed_streams(&mut self) {
        loop {
            let closing = {
                let process = &mut *self.process.borrow_mut();
                let place = process.streams.iter().position(|stream| stream.open && stream.closing.is_some());
                place.and_then(|place| {
                    let stream = process.streams.get_mut(place)?;
                    stream.open = false;
                    Some((stream.vm, u32::try_from(place + 1).ok()?, stream.closing?))
                })
            };
            let Some((vm, token, status)) = closing else { return };
            self.vms[vm].callback::<_, ()>(ROOT, "proxy_on_grpc_close", (ROOT, token, status));
        }
    }

    /// What a VM has said since the last call, on all its streams, oldest first.
    pub fn take_said(&mut self, vm: usize) -> Vec<Message> {
        let process = &mut *self.process.borrow_mut();
        let streams = process.streams.iter_mut().filter(|stream| stream.vm == vm);
        streams.flat_map(|stream| std::mem::take(&mut stream.said)).filter_map(|message| message.message).collect()
    }

    /// The reports among what a VM has said since the last call.
    pub fn take_reports(&mut self, vm: usize) -> Vec<v1::Report> {
        let said = self.take_said(vm);
        said.into_iter()
            .flat_map(|message| match message {
                Message::Reports(batch) => batch.reports,
                _ => Vec::new(),
            })
            .collect()
    }
}
