//! One Envoy process: VMs, requests that pass through them, the control service's streams, and time.

mod control;
mod request;
mod response;

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;

use crate::artifact;
use crate::http::{Answer, Forwarded, Received, Request};
use crate::process::{Metric, Process};
use crate::vm::{ROOT, Vm};

/// How the process is configured.
#[derive(Debug, Clone)]
pub struct Options {
    /// VMs that serve requests.
    pub vms: usize,
    /// The plugin's configuration.
    pub configuration: String,
    /// `ip:port` of the hosts of the worker cluster, all of which take connections at first.
    pub hosts: Vec<String>,
    /// Internal listeners that lead to providers; the gateway's plugin is told of them in its configuration.
    pub listeners: Vec<String>,
    /// Envoy's `allow_on_headers_stop_iteration`: a filter that holds the headers still sees the body.
    pub stop_iteration: bool,
    /// Most bytes that Envoy holds for a filter; beyond, it answers 413 itself.
    pub buffer_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vms: 1,
            configuration: r#"{"gatewayBackend":"default/main","controlCluster":"kinference_control"}"#.to_owned(),
            hosts: Vec::new(),
            listeners: Vec::new(),
            stop_iteration: true,
            buffer_limit: 64 << 20,
        }
    }
}

/// A request that passes, or has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The VM that serves it.
    pub vm: usize,
    context: u32,
}

/// One Envoy process.
///
/// A VM that traps serves nothing any more, as in Envoy, and the proxy reports it when it is dropped, so that a test
/// cannot overlook it.
pub struct Proxy {
    options: Options,
    process: Rc<RefCell<Process>>,
    vms: Vec<Vm>,
    /// A trap was looked at, and is no surprise.
    trap_seen: bool,
}

impl Proxy {
    /// Starts a process. `None` when the filter refuses its configuration; [`Proxy::refusal`] gives the log then.
    ///
    /// # Errors
    /// When there is no module, or it does not start.
    pub fn start(options: Options) -> Result<Option<Self>> {
        let mut process = Process::new();
        let listeners = options.listeners.iter().map(|name| format!("envoy://{name}/"));
        process.hosts = options.hosts.iter().cloned().chain(listeners).map(|host| (host, true)).collect();
        let process = Rc::new(RefCell::new(process));
        let mut proxy = Self { options, process, vms: Vec::new(), trap_seen: false };
        for _ in 0..proxy.options.vms {
            if !proxy.add_vm()? {
                return Ok(None);
            }
        }
        Ok(Some(proxy))
    }

    /// The log of a process whose filter refuses this configuration; `None` when it accepts it.
    ///
    /// # Errors
    /// When there is no module, or it does not start.
    pub fn refusal(configuration: &str) -> Result<Option<String>> {
        let process = Rc::new(RefCell::new(Process::new()));
        let vm = Vm::start(artifact::module()?, Rc::clone(&process), 0, configuration.as_bytes())?;
        Ok(vm.is_none().then(|| process.borrow().logs.join("\n")))
    }

    /// Starts one VM more. False when the filter refuses its configuration.
    ///
    /// # Errors
    /// When the module does not start.
    pub fn add_vm(&mut self) -> Result<bool> {
        let configuration = self.options.configuration.clone();
        let number = self.vms.len();
        let vm = Vm::start(artifact::module()?, Rc::clone(&self.process), number, configuration.as_bytes())?;
        let Some(mut vm) = vm else { return Ok(false) };
        for listener in &self.options.listeners {
            vm.add_listener(listener);
        }
        self.vms.push(vm);
        Ok(true)
    }

    /// Lets time pass: ticks fall due in their order.
    pub fn advance(&mut self, milliseconds: u64) {
        let end = self.process.borrow().now + milliseconds * 1_000_000;
        loop {
            let due = self.vms.iter().enumerate().filter_map(|(vm, state)| Some((state.view().next_tick?, vm))).min();
            let Some((at, vm)) = due.filter(|(at, _)| *at <= end) else { break };
            let now = self.process.borrow().now.max(at);
            self.process.borrow_mut().now = now;
            let state = self.vms[vm].state();
            state.next_tick = Some(at + state.tick_period.max(1));
            self.vms[vm].callback::<_, ()>(ROOT, "proxy_on_tick", ROOT);
            self.tell_closed_streams();
        }
        let now = self.process.borrow().now.max(end);
        self.process.borrow_mut().now = now;
    }

    /// Sets the wall clock back, as an administrator may.
    pub fn set_clock_back(&mut self, milliseconds: u64) {
        self.process.borrow_mut().now -= milliseconds * 1_000_000;
        for vm in &mut self.vms {
            // Timers do not follow the wall clock.
            let state = vm.state();
            state.next_tick = state.next_tick.map(|at| at - milliseconds * 1_000_000);
        }
    }

    /// A host of the worker cluster takes connections, or refuses them.
    pub fn set_host(&mut self, address: &str, up: bool) {
        self.process.borrow_mut().hosts.insert(address.to_owned(), up);
    }

    /// A host is no longer of the worker cluster.
    pub fn remove_host(&mut self, address: &str) {
        self.process.borrow_mut().hosts.remove(address);
    }

    /// A client sends a whole request.
    pub fn send(&mut self, vm: usize, request: &Request) -> Exchange {
        let exchange = self.open(vm);
        self.pass(exchange, request);
        exchange
    }

    /// A whole request enters an internal listener, as one that the gateway sent there does.
    pub fn enter(&mut self, vm: usize, listener: &str, request: &Request) -> Exchange {
        let exchange = Exchange { vm, context: self.vms[vm].open(Some(listener)) };
        self.pass(exchange, request);
        exchange
    }

    fn pass(&mut self, exchange: Exchange, request: &Request) {
        let has_body = !request.pieces.is_empty();
        self.request_headers(exchange, &request.headers, !has_body && !request.trailers);
        for (i, piece) in request.pieces.iter().enumerate() {
            self.request_body(exchange, piece, i + 1 == request.pieces.len() && !request.trailers);
        }
        if request.trailers {
            self.request_trailers(exchange);
        }
    }

    /// A client's request reaches a VM.
    pub fn open(&mut self, vm: usize) -> Exchange {
        Exchange { vm, context: self.vms[vm].open(None) }
    }

    /// The worker answers.
    pub fn answer(&mut self, exchange: Exchange, answer: &Answer) {
        let has_body = !answer.pieces.is_empty();
        self.response_headers(exchange, &answer.headers, !has_body && !answer.trailers);
        for (i, piece) in answer.pieces.iter().enumerate() {
            self.response_body(exchange, piece, i + 1 == answer.pieces.len() && !answer.trailers);
        }
        if answer.trailers {
            self.response_trailers(exchange);
        }
    }

    /// What reached a worker; `None` when nothing did.
    #[must_use]
    pub fn forwarded(&self, exchange: Exchange) -> Option<Forwarded> {
        self.vms[exchange.vm].view().exchanges.get(&exchange.context)?.forwarded.clone()
    }

    /// What reached the client.
    #[must_use]
    pub fn received(&self, exchange: Exchange) -> Received {
        let exchanges = &self.vms[exchange.vm].view().exchanges;
        exchanges.get(&exchange.context).map(|exchange| exchange.received.clone()).unwrap_or_default()
    }

    /// Forgets a request that is over, as Envoy does.
    pub fn forget(&mut self, exchange: Exchange) {
        self.vms[exchange.vm].state().exchanges.remove(&exchange.context);
    }

    /// A metric by its name.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<Metric> {
        self.process.borrow().metrics.iter().find(|(known, _)| known == name).map(|(_, metric)| metric.clone())
    }

    /// A counter's or gauge's value; 0 when there is none.
    #[must_use]
    pub fn value(&self, name: &str) -> u64 {
        match self.metric(name) {
            Some(Metric::Value(value)) => value,
            _ => 0,
        }
    }

    /// All log lines.
    #[must_use]
    pub fn logs(&self) -> Vec<String> {
        self.process.borrow().logs.clone()
    }

    /// Fuel that a VM used since the last call.
    pub fn take_fuel(&mut self, vm: usize) -> u64 {
        self.vms[vm].take_fuel()
    }

    /// Bytes of a VM's memory.
    #[must_use]
    pub fn memory_bytes(&self, vm: usize) -> usize {
        self.vms[vm].memory_bytes()
    }

    /// Milliseconds between a VM's ticks.
    #[must_use]
    pub fn tick_period_ms(&self, vm: usize) -> u64 {
        self.vms[vm].view().tick_period / 1_000_000
    }

    /// Why a VM trapped.
    pub fn trap(&mut self, vm: usize) -> Option<&str> {
        self.trap_seen = true;
        self.vms[vm].trap.as_deref()
    }

    /// Calls a VM for a context that does not exist, which makes it trap.
    pub fn provoke_trap(&mut self, vm: usize) {
        self.vms[vm].callback::<_, ()>(ROOT, "proxy_on_tick", 999_999u32);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() || self.trap_seen {
            return;
        }
        if let Some(trap) = self.vms.iter().find_map(|vm| vm.trap.as_ref()) {
            panic!("a VM trapped: {trap}\nlog:\n{}", self.logs().join("\n"));
        }
    }
}
