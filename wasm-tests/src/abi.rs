//! The host functions of proxy-wasm ABI 0.2.1 that the filter calls, with Envoy's meaning and statuses.

use wasmtime::{Caller, Linker, Result};

use crate::http::Headers;
use crate::memory::{encode_pairs, give, pairs, read, status, text, write};
use crate::process::{Control, Metric, Stream};
use crate::vm::{Exchange, State};

const REQUEST_BODY: i32 = 0;
const RESPONSE_BODY: i32 = 1;
const GRPC_MESSAGE: i32 = 5;
const CONFIGURATION: i32 = 7;
const REQUEST_HEADERS: i32 = 0;
const RESPONSE_HEADERS: i32 = 2;
const GRPC_UNAVAILABLE: u32 = 14;

type Host<'a> = Caller<'a, State>;

/// Adds the functions to a linker.
pub(crate) fn define(linker: &mut Linker<State>) -> Result<()> {
    general(linker)?;
    buffers(linker)?;
    headers(linker)?;
    shared_data(linker)?;
    metrics(linker)?;
    streams(linker)
}

fn general(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap("env", "proxy_log", |mut host: Host<'_>, level: i32, at: u32, length: u32| -> Result<i32> {
        let line = text(&mut host, at, length)?;
        let vm = host.data().vm;
        host.data().process.borrow_mut().logs.push(format!("[vm {vm}] [{level}] {line}"));
        Ok(status::OK)
    })?;
    linker.func_wrap("env", "proxy_get_current_time_nanoseconds", |mut host: Host<'_>, at: u32| -> Result<i32> {
        let now = host.data().process.borrow().now;
        write(&mut host, at, &now.to_le_bytes())?;
        Ok(status::OK)
    })?;
    linker.func_wrap("env", "proxy_set_tick_period_milliseconds", |mut host: Host<'_>, period: u32| -> i32 {
        let now = host.data().process.borrow().now;
        let state = host.data_mut();
        state.tick_period = u64::from(period) * 1_000_000;
        state.next_tick = (period > 0).then_some(now + state.tick_period);
        status::OK
    })?;
    linker.func_wrap("env", "proxy_set_effective_context", |mut host: Host<'_>, context: u32| -> i32 {
        host.data_mut().active = context;
        status::OK
    })?;
    linker.func_wrap(
        "env",
        "proxy_get_property",
        |mut host: Host<'_>, path: u32, path_length: u32, at: u32, length_at: u32| -> Result<i32> {
            let path = text(&mut host, path, path_length)?;
            match property(host.data(), &path) {
                Some(value) => give(&mut host, &value, at, length_at),
                None => Ok(status::NOT_FOUND),
            }
        },
    )?;
    linker.func_wrap("env", "proxy_send_local_response", send_local_response)?;
    linker.func_wrap(
        "env",
        "proxy_call_foreign_function",
        |mut host: Host<'_>, name: u32, length: u32, _: u32, _: u32, _: u32, _: u32| -> Result<i32> {
            let name = text(&mut host, name, length)?;
            if name != "clear_route_cache" {
                return Ok(status::NOT_FOUND);
            }
            let Some(exchange) = active(&mut host) else { return Ok(status::BAD_ARGUMENT) };
            exchange.route_fresh = true;
            Ok(status::OK)
        },
    )?;
    Ok(())
}

fn property(state: &State, path: &str) -> Option<Vec<u8>> {
    if path.split('\0').eq(["node", "id"]) {
        return Some(state.process.borrow().node_id.clone().into_bytes());
    }
    let exchange = state.exchanges.get(&state.active)?;
    let known = |text: &String| (!text.is_empty()).then(|| text.clone().into_bytes());
    match path.split('\0').collect::<Vec<_>>().as_slice() {
        ["upstream", "address"] => known(&exchange.address),
        ["upstream", "request_attempt_count"] => Some(u64::from(exchange.attempts).to_le_bytes().to_vec()),
        ["response", "code_details"] => known(&exchange.details),
        _ => None,
    }
}

#[allow(clippy::too_many_arguments, reason = "the ABI has them")]
fn send_local_response(
    mut host: Host<'_>,
    code: u32,
    _details: u32,
    _details_length: u32,
    body: u32,
    body_length: u32,
    headers: u32,
    headers_length: u32,
    _grpc_status: i32,
) -> Result<i32> {
    let body = read(&mut host, body, body_length)?;
    let Some(pairs) = pairs(&read(&mut host, headers, headers_length)?) else { return Ok(status::BAD_ARGUMENT) };
    let mut headers = Headers::default();
    for (name, value) in pairs {
        headers.add(&name, &value);
    }
    let Some(exchange) = active(&mut host) else { return Ok(status::BAD_ARGUMENT) };
    if exchange.reply.is_some() || exchange.over {
        return Ok(status::BAD_ARGUMENT);
    }
    exchange.reply = Some((u16::try_from(code).unwrap_or(500), headers, body));
    Ok(status::OK)
}

fn active<'a>(host: &'a mut Host<'_>) -> Option<&'a mut Exchange> {
    let state = host.data_mut();
    state.exchanges.get_mut(&state.active)
}

fn buffers(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        "env",
        "proxy_get_buffer_bytes",
        |mut host: Host<'_>, kind: i32, start: u32, length: u32, at: u32, length_at: u32| -> Result<i32> {
            let state = host.data();
            let exchange = state.exchanges.get(&state.active);
            let buffer = match kind {
                REQUEST_BODY => exchange.map(|exchange| &exchange.body),
                RESPONSE_BODY => exchange.map(|exchange| &exchange.piece),
                GRPC_MESSAGE => Some(&state.message),
                CONFIGURATION => Some(&state.configuration),
                _ => None,
            };
            let Some(buffer) = buffer else { return Ok(status::NOT_FOUND) };
            let (start, length) = (start as usize, length as usize);
            if start > buffer.len() || start.checked_add(length).is_none_or(|end| u32::try_from(end).is_err()) {
                return Ok(status::BAD_ARGUMENT);
            }
            let bytes = buffer[start..buffer.len().min(start + length)].to_vec();
            give(&mut host, &bytes, at, length_at)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_set_buffer_bytes",
        |mut host: Host<'_>, kind: i32, start: u32, length: u32, at: u32, new: u32| -> Result<i32> {
            let bytes = read(&mut host, at, new)?;
            let Some(exchange) = active(&mut host) else { return Ok(status::BAD_ARGUMENT) };
            let (start, end) = (start as usize, start.saturating_add(length) as usize);
            if kind != REQUEST_BODY || start > exchange.body.len() {
                return Ok(status::BAD_ARGUMENT);
            }
            let end = end.min(exchange.body.len());
            exchange.body.splice(start..end, bytes);
            Ok(status::OK)
        },
    )?;
    Ok(())
}

/// The map that a callback may read and write now.
fn map<'a>(host: &'a mut Host<'_>, kind: i32) -> Option<&'a mut Headers> {
    let exchange = active(host)?;
    match kind {
        REQUEST_HEADERS if !exchange.headers_sent => Some(&mut exchange.request),
        RESPONSE_HEADERS if exchange.response_open => Some(&mut exchange.response),
        _ => None,
    }
}

fn headers(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        "env",
        "proxy_get_header_map_value",
        |mut host: Host<'_>, kind: i32, name: u32, name_length: u32, at: u32, length_at: u32| -> Result<i32> {
            let name = text(&mut host, name, name_length)?;
            let Some(headers) = map(&mut host, kind) else { return Ok(status::BAD_ARGUMENT) };
            match headers.get(&name) {
                Some(value) => give(&mut host, &value, at, length_at),
                None => Ok(status::NOT_FOUND),
            }
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_get_header_map_pairs",
        |mut host: Host<'_>, kind: i32, at: u32, length_at: u32| -> Result<i32> {
            let Some(headers) = map(&mut host, kind) else { return Ok(status::BAD_ARGUMENT) };
            let bytes = encode_pairs(headers.iter())?;
            give(&mut host, &bytes, at, length_at)
        },
    )?;
    let write = |replace: bool| {
        move |mut host: Host<'_>, kind: i32, name: u32, name_length: u32, at: u32, length: u32| -> Result<i32> {
            let name = text(&mut host, name, name_length)?;
            let value = read(&mut host, at, length)?;
            let Some(headers) = map(&mut host, kind) else { return Ok(status::BAD_ARGUMENT) };
            if replace {
                headers.set(&name, &value)
            } else {
                headers.add(&name, &value)
            }
            Ok(status::OK)
        }
    };
    linker.func_wrap("env", "proxy_replace_header_map_value", write(true))?;
    linker.func_wrap("env", "proxy_add_header_map_value", write(false))?;
    linker.func_wrap(
        "env",
        "proxy_remove_header_map_value",
        |mut host: Host<'_>, kind: i32, name: u32, name_length: u32| -> Result<i32> {
            let name = text(&mut host, name, name_length)?;
            let Some(headers) = map(&mut host, kind) else { return Ok(status::BAD_ARGUMENT) };
            headers.remove(&name);
            Ok(status::OK)
        },
    )?;
    Ok(())
}

fn shared_data(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        "env",
        "proxy_get_shared_data",
        |mut host: Host<'_>, key: u32, key_length: u32, at: u32, length_at: u32, version_at: u32| -> Result<i32> {
            let key = read(&mut host, key, key_length)?;
            let found = host.data().process.borrow().shared.get(&key).cloned();
            let Some((value, version)) = found else { return Ok(status::NOT_FOUND) };
            write(&mut host, version_at, &version.to_le_bytes())?;
            give(&mut host, &value, at, length_at)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_set_shared_data",
        |mut host: Host<'_>, key: u32, key_length: u32, at: u32, length: u32, version: u32| -> Result<i32> {
            let (key, value) = (read(&mut host, key, key_length)?, read(&mut host, at, length)?);
            let written = host.data().process.borrow_mut().share(&key, &value, version);
            Ok(if written { status::OK } else { status::CAS_MISMATCH })
        },
    )?;
    Ok(())
}

fn metrics(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap(
        "env",
        "proxy_define_metric",
        |mut host: Host<'_>, kind: i32, name: u32, name_length: u32, at: u32| -> Result<i32> {
            let name = text(&mut host, name, name_length)?;
            let id = {
                let metrics = &mut host.data().process.borrow_mut().metrics;
                let place = metrics.iter().position(|(known, _)| *known == name).unwrap_or(metrics.len());
                if place == metrics.len() {
                    metrics.push((name, if kind == 2 { Metric::Histogram(Vec::new()) } else { Metric::Value(0) }));
                }
                u32::try_from(place)? + 1
            };
            write(&mut host, at, &id.to_le_bytes())?;
            Ok(status::OK)
        },
    )?;
    let change = |record: bool| {
        move |host: Host<'_>, id: u32, value: i64| -> i32 {
            let metrics = &mut host.data().process.borrow_mut().metrics;
            match (id as usize).checked_sub(1).and_then(|place| metrics.get_mut(place)) {
                Some((_, Metric::Histogram(values))) if record => values.push(value.cast_unsigned()),
                Some((_, Metric::Value(held))) if record => *held = value.cast_unsigned(),
                Some((_, Metric::Value(held))) => *held = held.saturating_add_signed(value),
                Some((_, Metric::Histogram(_))) => return status::BAD_ARGUMENT,
                None => return status::NOT_FOUND,
            }
            status::OK
        }
    };
    linker.func_wrap("env", "proxy_record_metric", change(true))?;
    linker.func_wrap("env", "proxy_increment_metric", change(false))?;
    Ok(())
}

fn streams(linker: &mut Linker<State>) -> Result<()> {
    linker.func_wrap("env", "proxy_grpc_stream", open_stream)?;
    linker.func_wrap(
        "env",
        "proxy_grpc_send",
        |mut host: Host<'_>, token: u32, at: u32, length: u32, _end: i32| -> Result<i32> {
            let bytes = read(&mut host, at, length)?;
            let process = &mut *host.data().process.borrow_mut();
            let Some(stream) = process.stream(token).filter(|stream| stream.open) else { return Ok(status::NOT_FOUND) };
            stream.said.push(prost::Message::decode(bytes.as_slice()).map_err(wasmtime::Error::new)?);
            Ok(status::OK)
        },
    )?;
    linker.func_wrap("env", "proxy_grpc_cancel", |host: Host<'_>, token: u32| -> i32 {
        let process = &mut *host.data().process.borrow_mut();
        match process.stream(token).filter(|stream| stream.open) {
            Some(stream) => {
                stream.open = false;
                status::OK
            }
            None => status::NOT_FOUND,
        }
    })?;
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the ABI has them")]
fn open_stream(
    mut host: Host<'_>,
    cluster: u32,
    cluster_length: u32,
    service: u32,
    service_length: u32,
    method: u32,
    method_length: u32,
    _metadata: u32,
    _metadata_length: u32,
    token_at: u32,
) -> Result<i32> {
    let cluster = text(&mut host, cluster, cluster_length)?;
    let method = format!("{}/{}", text(&mut host, service, service_length)?, text(&mut host, method, method_length)?);
    let vm = host.data().vm;
    let token = {
        let process = &mut *host.data().process.borrow_mut();
        let closing = match process.control {
            Control::NoCluster => return Ok(status::PARSE_FAILURE),
            // The end of a stream that cannot connect comes after the call that opened it.
            Control::Down => Some(GRPC_UNAVAILABLE),
            Control::Up => None,
        };
        process.streams.push(Stream { vm, cluster, method, open: true, closing, said: Vec::new() });
        u32::try_from(process.streams.len())?
    };
    write(&mut host, token_at, &token.to_le_bytes())?;
    Ok(status::OK)
}
