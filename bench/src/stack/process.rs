//! Child processes that never outlive this one.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::error::StackError;
use super::poll::until;
use super::programs;

/// How much of a log an error shows.
const TAIL_LINES: usize = 30;

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Length of the log when the process started: it may follow another one's.
    start_of_log: u64,
}

impl Process {
    /// Starts a program, its output added to `FOLDER/NAME.log`.
    ///
    /// # Errors
    /// The log cannot be written, or the program cannot be started.
    pub fn start(name: &str, mut command: Command, folder: &Path) -> Result<Self, StackError> {
        let log = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).map_err(StackError::io("open", &log))?;
        let start_of_log = file.metadata().map_or(0, |metadata| metadata.len());
        let copy = file.try_clone().map_err(StackError::io("open", &log))?;
        // A group of its own: Ctrl-C in a terminal reaches this process only, which ends the others.
        command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        let program = command.get_program().to_owned();
        let child = keeper_spawn(command).map_err(StackError::io("start", program))?;
        reaper_note('+', child.id());
        Ok(Self { name: name.to_owned(), child, log, start_of_log })
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        reaper_note('-', self.child.id());
    }

    /// Waits until a line of its output begins with `start`, and gives everything it said up to there.
    ///
    /// # Errors
    /// It ended, or did not say so in time; with the end of its log.
    pub async fn says(&mut self, start: &str, limit: Duration) -> Result<String, StackError> {
        let what = format!("{:?} in the output of {}", start, self.name);
        let mut ended = None;
        let found = until(&what, limit, async || {
            let text = self.output();
            if text.lines().any(|line| line.starts_with(start)) {
                return Ok(Some(text));
            }
            ended = self.ended();
            if ended.is_some() { Ok(None) } else { Err("no such line".to_owned()) }
        });
        match found.await {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err(self.error(format!("ended early ({})", ended.unwrap_or_default()))),
            Err(error) => Err(self.error(error.to_string())),
        }
    }

    /// How it ended, when it did.
    #[must_use]
    pub fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// What it printed.
    #[must_use]
    pub fn output(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let own = text.get(self.start_of_log as usize..).unwrap_or_default();
        String::from_utf8_lossy(own).into_owned()
    }

    /// An error about it, with the end of its log.
    #[must_use]
    pub fn error(&self, reason: String) -> StackError {
        StackError::Process {
            process: self.name.clone(),
            reason,
            log: self.log.display().to_string(),
            tail: self.tail(),
        }
    }

    /// The end of its log.
    #[must_use]
    pub fn tail(&self) -> String {
        let text = self.output();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Memory that it holds (resident set), in bytes; 0 where the system does not tell (Linux does).
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let held =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB")?.trim().parse::<u64>().ok());
        held.unwrap_or_default() * 1024
    }

    /// Processor time used so far, in seconds; 0 where the system does not tell (Linux does).
    #[must_use]
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&self.child.id().to_string())
    }
}

/// Processor time that this process has used so far, in seconds; 0 where the system does not tell (Linux does).
#[must_use]
pub fn own_cpu_seconds() -> f64 {
    cpu_seconds("self")
}

fn cpu_seconds(process: &str) -> f64 {
    // Linux counts in hundredths of a second there, on every platform (USER_HZ).
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // User and system time are fields 14 and 15; those up to the name are cut off.
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process: Envoy asks the kernel to end it with the thread that
/// started it.
fn keeper_spawn(command: Command) -> std::io::Result<Child> {
    static KEEPER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (orders, received) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in received {
                // Nobody waits for an answer only when the whole process is ending.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let gone = |_| std::io::Error::other("the thread that starts processes is gone");
    let (answer, answered) = mpsc::channel();
    keeper
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .map_err(|error| gone(error.to_string()))?;
    answered.recv().map_err(|error| gone(error.to_string()))?
}

/// Kills what is left when its input ends, which it does with this process, however that ends.
const REAPER: &str = r#"
live=" "
while read -r sign pid; do
  case $sign in
    +) live="$live$pid " ;;
    -) live="${live%%" $pid "*} ${live#*" $pid "}" ;;
  esac
done
for pid in $live; do kill -9 "$pid" 2>/dev/null; done
"#;

fn reaper_note(sign: char, pid: u32) {
    static REAPER_INPUT: OnceLock<Mutex<Option<ChildStdin>>> = OnceLock::new();
    let input = REAPER_INPUT.get_or_init(|| {
        let mut command = Command::new("sh");
        command.args(["-c", REAPER]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // Without a shell, processes end by Drop only.
        Mutex::new(command.spawn().ok().and_then(|mut child| child.stdin.take()))
    });
    if let Some(input) = input.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        let _ = writeln!(input, "{sign} {pid}");
    }
}

/// A folder for the files and logs of one stack. Kept when a test fails.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    keep: bool,
}

impl RunFolder {
    /// Makes a folder of its own where all passing files are, in the target folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new() -> Result<Self, StackError> {
        Self::create(&programs::runs()?)
    }

    /// Makes a folder of its own below `parent`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(parent: &Path) -> Result<Self, StackError> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = parent.join(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(StackError::io("create", &path))?;
        Ok(Self { path, keep: false })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder there.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.keep && !std::thread::panicking() {
            // What cannot be removed lies in the target folder and harms nobody.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A port that nobody listens on, outside of the range that outgoing connections get theirs from: it stays free while its
/// process is being restarted.
///
/// # Errors
/// None was found.
pub fn free_port() -> Result<u16, StackError> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    const RANGE: std::ops::Range<u32> = 20_000..32_000;
    let seed = std::process::id().wrapping_mul(7919);
    let start = Instant::now();
    loop {
        let step = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let port = (RANGE.start + (seed.wrapping_add(step)) % (RANGE.end - RANGE.start)) as u16;
        match std::net::TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(source) if start.elapsed() > Duration::from_secs(1) => {
                return Err(StackError::Io {
                    what: "find a free port, the last one tried was",
                    path: port.to_string().into(),
                    source,
                });
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn folder() -> RunFolder {
        RunFolder::create(&std::env::temp_dir().join("kinference-process-tests")).unwrap()
    }

    #[tokio::test]
    async fn output_is_waited_for_and_shown_when_it_does_not_come() {
        let folder = folder();
        let mut talks = Process::start("talks", shell("echo one; echo ready 7; sleep 60"), folder.path()).unwrap();
        assert_eq!(talks.says("ready", Duration::from_secs(10)).await.unwrap(), "one\nready 7\n");
        assert_eq!(talks.ended(), None);
        talks.kill();
        assert!(talks.ended().is_some());

        let mut fails = Process::start("fails", shell("echo no such luck >&2; exit 3"), folder.path()).unwrap();
        let message = fails.says("ready", Duration::from_secs(10)).await.unwrap_err().to_string();
        assert!(message.contains("no such luck") && message.contains("exit status: 3"), "{message}");
        // The log of the same name goes on; what a new process says is told apart.
        let mut again = Process::start("talks", shell("sleep 60"), folder.path()).unwrap();
        assert!(again.says("ready", Duration::from_millis(50)).await.is_err());
    }

    #[tokio::test]
    async fn a_dropped_process_is_gone() {
        let folder = folder();
        let process = Process::start("sleeps", shell("echo up; sleep 60"), folder.path()).unwrap();
        let stat = format!("/proc/{}/stat", process.child.id());
        assert!(Path::new(&stat).exists() || !cfg!(target_os = "linux"));
        drop(process);
        assert!(!Path::new(&stat).exists());
    }

    #[test]
    fn the_reaper_kills_what_is_left_when_its_input_ends() {
        let mut stays = shell("sleep 60").spawn().unwrap();
        let mut ended = shell("exit 0").spawn().unwrap();
        let mut goes = shell("sleep 60").spawn().unwrap();
        let mut reaper = shell(REAPER).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = reaper.stdin.take().unwrap();
        for (sign, child) in [('+', &goes), ('+', &stays), ('+', &ended), ('-', &stays), ('-', &ended)] {
            writeln!(input, "{sign} {}", child.id()).unwrap();
        }
        drop(input);
        assert!(reaper.wait().unwrap().code().is_some());
        assert_eq!(goes.wait().unwrap().code(), None);
        assert!(stays.try_wait().unwrap().is_none());
        stays.kill().unwrap();
        stays.wait().unwrap();
        ended.wait().unwrap();
    }

    #[test]
    fn ports_are_free_and_differ() {
        let (a, b) = (free_port().unwrap(), free_port().unwrap());
        assert_ne!(a, b);
        std::net::TcpListener::bind(("127.0.0.1", a)).unwrap();
    }
}
