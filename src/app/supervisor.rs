//! Tells systemd how the service is, where it runs under it (`Type=notify`).
//! Without the variable `NOTIFY_SOCKET` these do nothing.

use sd_notify::NotifyState;

/// It takes calls.
pub(super) fn ready() {
    tell(NotifyState::Ready);
}

/// It drains.
pub(super) fn stopping() {
    tell(NotifyState::Stopping);
}

/// The runtime still gives every part its turn. Asked for by `WatchdogSec`.
pub(super) fn alive() {
    if sd_notify::watchdog_enabled().is_some() {
        tell(NotifyState::Watchdog);
    }
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
