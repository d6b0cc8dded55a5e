//! Tells systemd how the service is, where it runs under it (`Type=notify`).
//! Without the variable `NOTIFY_SOCKET` these do nothing.

use sd_notify::NotifyState;

/// It takes calls.
pub(super) fn notify_ready() {
    notify(NotifyState::Ready);
}

/// It drains.
pub(super) fn notify_stopping() {
    notify(NotifyState::Stopping);
}

/// The runtime still gives every part its turn. Asked for by `WatchdogSec`.
pub(super) fn notify_watchdog() {
    if sd_notify::watchdog_enabled().is_some() {
        notify(NotifyState::Watchdog);
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
