//! One VM: the instantiated module, its contexts, and calls into it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Result, anyhow};
use wasmtime::{Instance, Linker, Memory, Module, Store, TypedFunc, WasmParams, WasmResults};

use crate::abi;
use crate::http::{Forwarded, Headers, Received};
use crate::process::Process;

/// The plugin's own context.
pub(crate) const ROOT: u32 = 1;

/// What host functions see.
pub(crate) struct State {
    pub(crate) vm: usize,
    pub(crate) process: Rc<RefCell<Process>>,
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
    pub(crate) configuration: Vec<u8>,
    /// The message of a stream that is being shown.
    pub(crate) message: Vec<u8>,
    /// The context that is being called.
    pub(crate) active: u32,
    pub(crate) exchanges: HashMap<u32, Exchange>,
    pub(crate) tick_period: u64,
    pub(crate) next_tick: Option<u64>,
}

/// One request and its answer, as the proxy holds them.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) request: Headers,
    /// The internal listener that it entered by.
    pub(crate) listener: Option<String>,
    /// The route is to be chosen again, by the headers as they are then.
    pub(crate) route_fresh: bool,
    /// The request's headers were sent on, and cannot be written any more.
    pub(crate) headers_sent: bool,
    /// The body that the filter holds, or the piece that it is shown.
    pub(crate) body: Vec<u8>,
    /// The filter holds the body.
    pub(crate) holding: bool,
    pub(crate) reply: Option<(u16, Headers, Vec<u8>)>,
    pub(crate) response: Headers,
    /// The response's headers are being shown.
    pub(crate) response_open: bool,
    /// The piece of the response's body that is being shown.
    pub(crate) piece: Vec<u8>,
    pub(crate) address: String,
    pub(crate) attempts: u32,
    pub(crate) details: String,
    pub(crate) forwarded: Option<Forwarded>,
    pub(crate) received: Received,
    /// Nothing more happens.
    pub(crate) over: bool,
}

/// One VM.
pub(crate) struct Vm {
    store: Store<State>,
    instance: Instance,
    next_context: u32,
    /// Contexts of the plugins in listeners of their own, by the listener's name.
    listeners: HashMap<String, u32>,
    pub(crate) trap: Option<String>,
}

impl Vm {
    /// Starts a VM and its plugin. `None` when the plugin refuses its configuration.
    pub(crate) fn start(
        module: &Module,
        process: Rc<RefCell<Process>>,
        vm: usize,
        configuration: &[u8],
    ) -> Result<Option<Self>> {
        let engine = module.engine();
        let mut linker = Linker::new(engine);
        abi::define(&mut linker).map_err(|error| anyhow!("{error:?}"))?;
        linker.define_unknown_imports_as_traps(module).map_err(|error| anyhow!("{error:?}"))?;
        let state = State {
            vm,
            process,
            memory: None,
            allocate: None,
            configuration: configuration.to_vec(),
            message: Vec::new(),
            active: ROOT,
            exchanges: HashMap::new(),
            tick_period: 0,
            next_tick: None,
        };
        let mut store = Store::new(engine, state);
        store.set_fuel(u64::MAX).map_err(|error| anyhow!("{error:?}"))?;
        let instance = linker.instantiate(&mut store, module).map_err(|error| anyhow!("{error:?}"))?;
        store.data_mut().memory = instance.get_memory(&mut store, "memory");
        store.data_mut().allocate = instance.get_typed_func(&mut store, "malloc").ok();
        let mut vm = Self { store, instance, next_context: ROOT + 1, listeners: HashMap::new(), trap: None };
        vm.call::<(), ()>("_initialize", ());
        vm.call::<_, ()>("proxy_on_context_create", (ROOT, 0u32));
        let started = vm.call::<_, u32>("proxy_on_vm_start", (ROOT, 0u32)) == Some(1);
        let length = u32::try_from(configuration.len())?;
        let configured = started && vm.call::<_, u32>("proxy_on_configure", (ROOT, length)) == Some(1);
        match &vm.trap {
            Some(trap) => Err(anyhow!("the module traps at its start: {trap}")),
            None => Ok(configured.then_some(vm)),
        }
    }

    /// Starts the plugin of an internal listener in the same VM.
    pub(crate) fn add_listener(&mut self, name: &str) {
        let context = self.next_context;
        self.next_context += 1;
        let configuration = serde_json::json!({ "provider": name }).to_string().into_bytes();
        let length = u32::try_from(configuration.len()).unwrap_or(u32::MAX);
        self.call::<_, ()>("proxy_on_context_create", (context, 0u32));
        let gateway = std::mem::replace(&mut self.state().configuration, configuration);
        let configured: Option<u32> = self.callback(context, "proxy_on_configure", (context, length));
        self.state().configuration = gateway;
        assert_eq!(configured, Some(1), "the plugin of listener {name} refuses its configuration");
        self.listeners.insert(name.to_owned(), context);
    }

    /// Calls into the module. A VM that trapped once is not called again.
    pub(crate) fn call<P: WasmParams, R: WasmResults>(&mut self, name: &str, parameters: P) -> Option<R> {
        if self.trap.is_some() {
            return None;
        }
        let function = self.instance.get_typed_func::<P, R>(&mut self.store, name);
        match function.and_then(|function| function.call(&mut self.store, parameters)) {
            Ok(result) => Some(result),
            Err(error) => {
                self.trap = Some(format!("{name}: {error:?}"));
                None
            }
        }
    }

    /// Calls a callback of a context.
    pub(crate) fn callback<P: WasmParams, R: WasmResults>(
        &mut self,
        context: u32,
        name: &str,
        parameters: P,
    ) -> Option<R> {
        self.store.data_mut().active = context;
        let result = self.call(name, parameters);
        self.store.data_mut().active = ROOT;
        result
    }

    /// Creates the context of a request in the gateway's listener, or in an internal one.
    pub(crate) fn open(&mut self, listener: Option<&str>) -> u32 {
        let root = listener.map_or(ROOT, |name| self.listeners[name]);
        let context = self.next_context;
        self.next_context += 1;
        let exchange = Exchange { listener: listener.map(str::to_owned), ..Exchange::default() };
        self.state().exchanges.insert(context, exchange);
        self.call::<_, ()>("proxy_on_context_create", (context, root));
        context
    }

    pub(crate) fn state(&mut self) -> &mut State {
        self.store.data_mut()
    }

    pub(crate) fn exchange(&mut self, context: u32) -> &mut Exchange {
        self.state().exchanges.entry(context).or_default()
    }

    pub(crate) fn view(&self) -> &State {
        self.store.data()
    }

    /// Fuel used since the last call of this function.
    pub(crate) fn take_fuel(&mut self) -> u64 {
        let used = self.store.get_fuel().map_or(0, |left| u64::MAX - left);
        // Fails only in an engine without fuel.
        let _ = self.store.set_fuel(u64::MAX);
        used
    }

    /// Bytes of the VM's memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.view().memory.map_or(0, |memory| memory.data_size(&self.store))
    }
}
