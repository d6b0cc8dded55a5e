//! The service of one user on one machine, `unstuck serve --local`: where its files are,
//! who may use them, and how it is started.

use std::{
    env,
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::user_dirs;
use crate::domain::clock;

/// The variables that are passed to a service that a hook starts: for directories, time zone
/// and language. The rest is not passed, because an agent's environment has secrets, and a
/// repository may set variables.
const KEPT_VARIABLES: &[&str] = &[
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "TZ",
    "USER",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];
/// A start is not attempted more often, so that a service that fails to start is not started
/// by each hook.
const START_INTERVAL: Duration = Duration::from_secs(2);
/// The longest wait for a service to stop. It saves its sessions first.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A larger log file of the service is replaced by an empty one.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The lock file has the directory of the sockets and the id of the process.
const LOCK_FILE_BYTES_MAX: u64 = 4_096;

/// The directories of the local service.
#[derive(Clone, Debug)]
pub(super) struct LocalDirs {
    /// The store, the key, logs.
    pub state: PathBuf,
    /// The sockets.
    pub sockets: PathBuf,
}

impl LocalDirs {
    /// The directories for this state directory, else the user's own. `None`: there is no home
    /// directory.
    pub fn find(state: Option<&Path>) -> Option<Self> {
        let named = state.and_then(|state| std::path::absolute(state).ok());
        let state = named.or_else(user_dirs::state_dir)?;
        Some(Self {
            sockets: user_dirs::runtime_dir().unwrap_or_else(|| state.clone()),
            state,
        })
    }

    /// The same, with the sockets of the running service: it may have been started with another
    /// `XDG_RUNTIME_DIR`.
    pub fn of_running_service(self) -> Self {
        let sockets = read_lock_file(&self.lock_file()).and_then(|bytes| {
            let line = bytes.split(|byte| *byte == b'\n').next()?;
            let path = PathBuf::from(OsStr::from_bytes(line));
            path.is_absolute().then_some(path)
        });
        let sockets = sockets.unwrap_or(self.sockets);
        Self { sockets, ..self }
    }

    pub fn http_socket(&self) -> PathBuf {
        self.sockets.join("http.sock")
    }

    pub fn grpc_socket(&self) -> PathBuf {
        self.sockets.join("grpc.sock")
    }

    pub fn store(&self) -> PathBuf {
        self.state.join("store")
    }

    /// The key is outside of the store.
    pub fn key_file(&self) -> PathBuf {
        self.state.join("key")
    }

    pub fn log_file(&self) -> PathBuf {
        self.state.join("serve.log")
    }

    fn lock_file(&self) -> PathBuf {
        self.state.join("lock")
    }

    /// Creates the directories for this user alone.
    pub fn create(&self) -> io::Result<()> {
        create_private_dir(&self.state)?;
        create_private_dir(&self.sockets)
    }

    /// Locks the state for one service, and writes the directory of its sockets to the lock
    /// file. `None`: another service runs.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.mode(0o600).open(self.lock_file())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(self.sockets.as_os_str().as_bytes())?;
        writeln!(file, "\n{}", process::id())?;
        Ok(Some(file))
    }

    /// Whether a service runs or starts.
    pub fn is_locked(&self) -> bool {
        let file = File::open(self.lock_file());
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Starts the service in the background, unless one runs or was started just now.
    pub fn start(&self, config: Option<&Path>) -> io::Result<()> {
        self.create()?;
        if self.is_locked() || !self.take_start()? {
            return Ok(());
        }
        let mut command = Command::new(env::current_exe()?);
        command.args(["serve", "--local", "--detached", "--state"]);
        command.arg(&self.state);
        if let Some(config) = config {
            command.arg("--config").arg(std::path::absolute(config)?);
        }
        let kept = |name: &&'static str| Some((*name, env::var_os(name)?));
        command
            .env_clear()
            .envs(KEPT_VARIABLES.iter().filter_map(kept))
            // Its working directory must not keep a file system busy.
            .current_dir("/")
            .stdin(Stdio::null())
            // An agent waits until all processes have closed the pipes of its hook.
            .stdout(Stdio::null())
            .stderr(self.open_log()?)
            .spawn()?;
        Ok(())
    }

    /// Stops the service that a hook has started, so that the next hook starts one with the
    /// current configuration. `false`: a service that a person has started keeps running.
    pub fn stop(&self) -> io::Result<bool> {
        let Some(pid) = self.running_pid() else {
            return Ok(true);
        };
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // The pidfd is that of the service, not of a later process with its id.
        let line = fs::read(format!("/proc/{pid}/cmdline"))?;
        if self.running_pid() != Some(pid) {
            return Ok(true);
        }
        if !line
            .split(|byte| *byte == 0)
            .any(|word| word == b"--detached")
        {
            return Ok(false);
        }
        pidfd_send_signal(&pidfd, Signal::TERM)?;
        let deadline = Instant::now() + STOP_TIME_MAX;
        while self.running_pid() == Some(pid) {
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(STOP_POLL_INTERVAL);
        }
        // The next start must not count as too soon after the last one.
        let _ = fs::remove_file(self.start_mark());
        Ok(true)
    }

    /// The process of the service that holds the lock.
    fn running_pid(&self) -> Option<Pid> {
        if !self.is_locked() {
            return None;
        }
        let bytes = read_lock_file(&self.lock_file())?;
        let line = bytes.split(|byte| *byte == b'\n').nth(1)?;
        let pid = std::str::from_utf8(line).ok()?.parse().ok()?;
        Pid::from_raw(pid)
    }

    fn start_mark(&self) -> PathBuf {
        self.state.join("started")
    }

    /// Whether the last start was long enough ago. Notes this one.
    fn take_start(&self) -> io::Result<bool> {
        let mark = self.start_mark();
        let age = fs::metadata(&mark).and_then(|mark| mark.modified());
        let is_recent = age
            .ok()
            .and_then(|at| clock::now().duration_since(at).ok())
            .is_some_and(|age| age < START_INTERVAL);
        if is_recent {
            return Ok(false);
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&mark)?.set_modified(clock::now())?;
        Ok(true)
    }

    fn open_log(&self) -> io::Result<File> {
        let path = self.log_file();
        let is_large = fs::metadata(&path).is_ok_and(|file| file.len() > LOG_BYTES_MAX);
        let mut options = OpenOptions::new();
        options.create(true).mode(0o600);
        if is_large {
            options.write(true).truncate(true);
        } else {
            options.append(true);
        }
        options.open(path)
    }
}

/// The two lines of the lock file.
fn read_lock_file(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(LOCK_FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Creates a directory with mode 0700, or sets the mode. A directory of another user is
/// refused.
pub(super) fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path)?;
    let mode = owned_mode(path)?;
    if mode != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Whether only this user can create files in the directory, so that a socket in it is not
/// another user's.
pub(super) fn is_private_dir(path: &Path) -> io::Result<bool> {
    Ok(owned_mode(path)? & 0o077 == 0)
}

/// The mode of a directory that belongs to this user.
fn owned_mode(path: &Path) -> io::Result<u32> {
    let found = fs::symlink_metadata(path)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && is_own {
        return Ok(found.mode() & 0o777);
    }
    let why = format!("{} is not a directory of this user", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}
