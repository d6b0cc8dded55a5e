//! Status notifications for systemd (`Type=notify`). They do nothing if the variable
//! `NOTIFY_SOCKET` is not set.

use sd_notify::NotifyState;

/// The service accepts calls.
pub(super) fn notify_ready() {
    notify(NotifyState::Ready);
}

/// The service drains.
pub(super) fn notify_stopping() {
    notify(NotifyState::Stopping);
}

/// The runtime still schedules tasks. Sent only if the unit sets `WatchdogSec`.
pub(super) fn notify_watchdog() {
    if sd_notify::watchdog_enabled().is_some() {
        notify(NotifyState::Watchdog);
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
