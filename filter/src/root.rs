//! Callbacks of the plugin as a whole, one for each VM.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use crate::config::Role;
use crate::envoy::Envoy;
use crate::flow::RequestFlow;
use crate::gateway::Gateway;
use crate::gateway::attempts::Attempts;
use crate::host::{Host, Severity};
use crate::http::{Http, ProviderHttp};
use crate::link::Link;
use crate::provider::ProviderFlow;

thread_local! {
    /// The one thing that the plugins of a VM share: what the gateway's side decided, for the providers' side.
    static ATTEMPTS: Rc<RefCell<Attempts>> = Rc::default();
}

#[derive(Default)]
pub(crate) struct Root {
    envoy: Envoy,
    gateway: Rc<RefCell<Gateway>>,
    /// The provider that this plugin's listener leads to; `None` for the gateway itself.
    provider: Option<Rc<str>>,
    /// This VM is one of its proxy's.
    joined: bool,
    /// There from the second tick on: a VM that only checks a configuration has none, and leaves no trace.
    link: Option<Link>,
}

impl Context for Root {
    fn on_grpc_stream_message(&mut self, token: u32, length: usize) {
        let Some(link) = &mut self.link else { return };
        let mut gateway = self.gateway.borrow_mut();
        gateway.clock.at(self.envoy.now());
        link.received(&self.envoy, &mut gateway, token, length, |length| self.envoy.message(length));
    }

    fn on_grpc_stream_close(&mut self, token: u32, status: u32) {
        let Some(link) = &mut self.link else { return };
        let now = self.gateway.borrow_mut().clock.at(self.envoy.now());
        link.closed(&self.envoy, token, status, now);
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, length: usize) -> bool {
        match Role::parse(&self.envoy.configuration(length)) {
            Ok(Role::Gateway(plugin)) => {
                self.envoy = Envoy::with_metrics();
                let mut gateway = Gateway::new(plugin, ATTEMPTS.with(Rc::clone));
                gateway.pace(&self.envoy, true);
                self.gateway = Rc::new(RefCell::new(gateway));
                true
            }
            Ok(Role::Provider(config)) => {
                self.envoy = Envoy::with_metrics();
                self.provider = Some(config.provider.into());
                true
            }
            Err(error) => {
                self.envoy.log(Severity::Error, &format!("kinference: {error}"));
                false
            }
        }
    }

    fn on_tick(&mut self) {
        let mut gateway = self.gateway.borrow_mut();
        let gateway = &mut *gateway;
        let now = gateway.clock.at(self.envoy.now());
        let proxy = || self.envoy.node_id();
        if !self.joined {
            self.joined = true;
            gateway.peers.join(&self.envoy, &proxy());
            gateway.peers.process(&self.envoy);
            return;
        }
        let link = self.link.get_or_insert_with(|| {
            // Names of nodes may be empty or the same for several proxies.
            let process = gateway.peers.process(&self.envoy);
            Link::new(gateway.peers.id(), format!("{}/{process:016x}", String::from_utf8_lossy(&proxy())))
        });
        let reported = !gateway.reports.is_empty() && link.is_open();
        gateway.tick(&self.envoy);
        gateway.peers.tick(&self.envoy, &gateway.ledger);
        link.tick(&self.envoy, gateway);
        gateway.pace(&self.envoy, reported || link.is_due_soon(now));
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(match &self.provider {
            Some(provider) => {
                let flow = ProviderFlow::new(Rc::clone(provider), ATTEMPTS.with(Rc::clone));
                Box::new(ProviderHttp::new(flow, self.envoy.clone()))
            }
            None => Box::new(Http::new(RequestFlow::new(Rc::clone(&self.gateway)), self.envoy.clone())),
        })
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root::default()));
}}
