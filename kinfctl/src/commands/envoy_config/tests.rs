use std::process::Command;

use clap::Parser;
use serde_json::Value;

use super::*;

/// A module that does nothing, and that Envoy takes for a proxy-wasm filter: a memory, an allocator, the ABI's version.
const EMPTY_FILTER: &[u8] =
    b"\0asm\x01\0\0\0\x01\x09\x02\x60\0\0\x60\x01\x7f\x01\x7f\x03\x03\x02\0\x01\x05\x03\x01\0\x01\
    \x07\x3f\x03\x06memory\x02\0\x17proxy_abi_version_0_2_1\0\0\x18proxy_on_memory_allocate\0\x01\
    \x0a\x0a\x02\x02\0\x0b\x05\0\x41\x80\x08\x0b";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn parse(arguments: &[&str]) -> Args {
    Line::parse_from([&["envoy-config"], arguments].concat()).args
}

fn rendered(arguments: &[&str]) -> (String, Value) {
    let args = parse(arguments);
    let control_tls = args.control_tls.render(&args.control).unwrap();
    let text = render(&args, &control_tls).unwrap();
    let value = serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (text, value)
}

fn connection_manager(config: &mut Value) -> &mut Value {
    config.pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config").unwrap()
}

fn workers(config: &mut Value) -> &mut Value {
    config.pointer_mut("/static_resources/clusters/0").unwrap()
}

#[test]
fn what_the_flags_say_is_in_its_place() {
    let (_, mut config) = rendered(&[
        "--control",
        "[::1]:7000",
        "--listen",
        "0.0.0.0:7001",
        "--admin",
        "127.0.0.1:7002",
        "--wasm",
        "/a \"b\"/f.wasm",
        "--gateway-backend",
        "team/main",
        "--body-limit",
        "1Mi",
        "--node-id",
        "@NODE_ID@: \"x\"",
    ]);
    assert_eq!(config["node"]["id"], "@NODE_ID@: \"x\"");
    assert_eq!(config["admin"]["address"]["socket_address"]["port_value"], 7002);
    let listener = &config["static_resources"]["listeners"][0];
    assert_eq!(listener["address"]["socket_address"]["address"], "0.0.0.0");
    assert_eq!(listener["address"]["socket_address"]["port_value"], 7001);
    assert_eq!(listener["per_connection_buffer_limit_bytes"], 2 << 20);
    let control = &config["static_resources"]["clusters"][1];
    assert_eq!(control["type"], "STATIC");
    let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
    assert_eq!(control.pointer(endpoint).unwrap()["address"], "::1");
    assert_eq!(control.pointer(endpoint).unwrap()["port_value"], 7000);

    let manager = connection_manager(&mut config);
    let plugin = &manager["http_filters"][0]["typed_config"]["config"];
    assert_eq!(plugin["allow_on_headers_stop_iteration"], true);
    assert_eq!(plugin["failure_policy"], "FAIL_RELOAD");
    assert_eq!(plugin["vm_config"]["code"]["local"]["filename"], "/a \"b\"/f.wasm");
    let configuration: Value = serde_json::from_str(plugin["configuration"]["value"].as_str().unwrap()).unwrap();
    let expected = serde_json::json!({"gatewayBackend": "team/main", "controlCluster": "kinference_control"});
    assert_eq!(configuration, expected);
}

#[test]
fn a_gateway_knows_the_workers_of_its_own_backend_alone() {
    for (arguments, expected) in [
        (&["--wasm", "f", "--gateway-backend", "team/lab"][..], "kinference_workers/team/lab"),
        (&["--wasm", "f"], "kinference_workers/default/main"),
        (&["--balancing", "random", "--gateway-backend", "lab"], "kinference_workers/default/lab"),
    ] {
        let (_, mut config) = rendered(arguments);
        assert_eq!(workers(&mut config)["eds_cluster_config"]["service_name"], expected, "{arguments:?}");
    }
}

#[test]
fn a_control_service_by_name_is_looked_up() {
    let (_, config) = rendered(&["--control", "control.kinference.svc:18100", "--wasm", "f"]);
    let control = &config["static_resources"]["clusters"][1];
    assert_eq!(control["type"], "STRICT_DNS");
    for bad in ["control", "control:x", "a b:1", ":1", "::1:80"] {
        assert!(bad.parse::<Authority>().is_err(), "{bad}");
    }
}

#[test]
fn the_baseline_differs_in_the_filter_and_the_policy_alone() {
    let (_, mut ours) = rendered(&["--wasm", "f.wasm"]);
    let ours_filters = connection_manager(&mut ours)["http_filters"].as_array_mut().unwrap().remove(0);
    assert_eq!(ours_filters["name"], "kinference");
    let policy = workers(&mut ours)["load_balancing_policy"].take();
    let name = "/policies/0/typed_extension_config/name";
    assert_eq!(policy.pointer(name).unwrap(), "envoy.load_balancing_policies.override_host");
    for (balancing, expected) in [("random", "random"), ("round-robin", "round_robin")] {
        let (_, mut baseline) = rendered(&["--balancing", balancing]);
        let policy = workers(&mut baseline)["load_balancing_policy"].take();
        let expected = format!("envoy.load_balancing_policies.{expected}");
        assert_eq!(policy.pointer(name).unwrap(), &Value::from(expected));
        assert_eq!(baseline, ours, "{balancing}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, expected) in [
        (&[][..], "--wasm is missing"),
        (&["--wasm", "f", "--body-limit", "2Gi"], "--body-limit 2Gi: Envoy buffers less than 2Gi"),
        (&["--wasm", "f", "--node-id", ""], "--node-id is empty"),
    ] {
        let error = render(&parse(arguments), &control_tls::Rendered::default()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Envoy from `$ENVOY`, from the cache that `cargo xtask setup` fills, or from the PATH.
fn envoy() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ENVOY") {
        return Some(PathBuf::from(path));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let cached = cache?.join("kinference/envoy-1.40.0/envoy");
    let on_path =
        std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join("envoy")).collect::<Vec<_>>();
    std::iter::once(cached).chain(on_path).find(|path| path.is_file())
}

#[test]
fn envoy_accepts_the_configuration() {
    let Some(envoy) = envoy() else {
        println!("skipped: no Envoy (set $ENVOY, or run `cargo xtask setup`)");
        return;
    };
    let folder = std::env::temp_dir().join(format!("kinfctl-envoy-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let wasm = folder.join("empty.wasm");
    std::fs::write(&wasm, EMPTY_FILTER).unwrap();
    let wasm = wasm.to_str().unwrap();
    let variants = [
        &["--wasm", wasm][..],
        &["--wasm", wasm, "--control", "localhost:18100", "--body-limit", "1Ki", "--listen", "[::1]:8080"],
        &["--balancing", "random"],
        &["--balancing", "round-robin"],
    ];
    for arguments in variants {
        let file = folder.join("envoy.yaml");
        std::fs::write(&file, rendered(arguments).0).unwrap();
        let run = Command::new(&envoy).args(["--mode", "validate", "-l", "warning", "-c"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{arguments:?}: {said}");
        assert!(!said.contains("eprecated"), "{arguments:?}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
