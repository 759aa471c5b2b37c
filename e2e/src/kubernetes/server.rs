//! etcd and kube-apiserver.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kinference_bench::stack::{Process, StackError, free_port, until};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use super::error::KubernetesError;
use super::{kubeconfig, programs};

/// Time for the API server to be ready: 3 s on a quiet machine.
const START: Duration = Duration::from_secs(60);

/// A running API server with its etcd, on loopback.
#[derive(Debug)]
pub(super) struct Server {
    // Fields are dropped in this order: without its etcd, the API server would fill its log.
    api: Option<Process>,
    _etcd: Process,
    folder: PathBuf,
    program: PathBuf,
    etcd_port: u16,
    port: u16,
}

impl Server {
    /// Starts both below a folder, and returns when the API server says that it is ready.
    pub(super) async fn start(folder: &Path) -> Result<Self, KubernetesError> {
        let programs = programs::api_server()?;
        let (etcd_port, peer_port, port) = (free_port()?, free_port()?, free_port()?);
        let mut command = Command::new(programs.join("etcd"));
        command.arg("--data-dir").arg(folder.join("etcd"));
        let (clients, peers) = (format!("http://127.0.0.1:{etcd_port}"), format!("http://127.0.0.1:{peer_port}"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        // Nothing here has to survive a power cut.
        command.args(["--listen-peer-urls", &peers, "--unsafe-no-fsync"]);
        let etcd = Process::start("etcd", command, folder)?;

        write_identity(folder)?;
        let program = programs.join("kube-apiserver");
        let mut server = Self { api: None, _etcd: etcd, folder: folder.to_owned(), program, etcd_port, port };
        server.resume().await?;
        Ok(server)
    }

    /// The administrator's kubeconfig.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Kills the API server. Its data stay.
    pub(super) fn stop(&mut self) {
        self.api = None;
    }

    /// Starts the API server on its data and at its address, and returns when it is ready.
    pub(super) async fn resume(&mut self) -> Result<(), KubernetesError> {
        let mut command = Command::new(&self.program);
        let file = |name: &str| self.folder.join(name);
        command.args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"]);
        command.arg(format!("--secure-port={}", self.port));
        command.arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port));
        command.args(["--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC"]);
        // There is no controller that makes the service account which this admission asks every Pod for.
        command.arg("--disable-admission-plugins=ServiceAccount");
        command.arg("--service-account-issuer=https://kubernetes.default.svc");
        command.arg("--service-account-key-file").arg(file("service-accounts.pub"));
        command.arg("--service-account-signing-key-file").arg(file("service-accounts.key"));
        command.arg("--cert-dir").arg(file("certificates"));
        command.arg("--token-auth-file").arg(file("tokens.csv"));
        let mut api = Process::start("kube-apiserver", command, &self.folder)?;

        let token =
            std::fs::read_to_string(file("admin.token")).map_err(StackError::io("read", file("admin.token")))?;
        let authority = file("certificates").join("apiserver.crt");
        let path = self.kubeconfig();
        kubeconfig::write(&path, &format!("https://127.0.0.1:{}", self.port), &authority, &token)?;
        let ready = until("a ready API server", START, async || {
            if let Some(how) = api.ended() {
                // There is no use in looking further.
                return Ok(Err(api.error(format!("ended early ({how})"))));
            }
            let client = kubeconfig::client(&path).await.map_err(|error| error.to_string())?;
            let request = http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
            client.request_text(request).await.map_err(|error| error.to_string())?;
            Ok(Ok(()))
        });
        match ready.await {
            Ok(ready) => ready?,
            Err(error) => return Err(api.error(error.to_string()).into()),
        }
        self.api = Some(api);
        Ok(())
    }

    /// The ends of the logs, for a test that fails.
    pub(super) fn tails(&self) -> String {
        let tail = |process: &Process| format!("--- the end of {}'s log ---\n{}\n", process.name(), process.tail());
        self.api.as_ref().map(tail).unwrap_or_default()
    }
}

/// The administrator's token, and the key that service accounts' tokens are signed with.
fn write_identity(folder: &Path) -> Result<(), KubernetesError> {
    let mut random = [0; 16];
    let device = Path::new("/dev/urandom");
    let read = std::fs::File::open(device).and_then(|mut file| file.read_exact(&mut random));
    read.map_err(StackError::io("read", device))?;
    let token = format!("{:032x}", u128::from_ne_bytes(random));
    kubeconfig::secret(&folder.join("tokens.csv"), &format!("{token},admin,admin,system:masters\n"))?;
    kubeconfig::secret(&folder.join("admin.token"), &token)?;
    let failed = |error: rcgen::Error| KubernetesError::Manifest {
        what: "the key of service accounts".into(),
        reason: error.to_string(),
    };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    kubeconfig::secret(&folder.join("service-accounts.key"), &key.serialize_pem())?;
    kubeconfig::secret(&folder.join("service-accounts.pub"), &key.public_key_pem())
}
