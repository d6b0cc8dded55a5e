// Operator actions on a session. Each dialog says what the action does, requires
// a reason, and shows the service's response.

import { call, errorMessage, operator } from "./api.js";
import { announce, el, sanitize, setChildren } from "./dom.js";
import * as format from "./format.js";

const SNOOZE_DURATIONS = [["15 minutes", "900s"], ["1 hour", "3600s"], ["4 hours", "14400s"], ["1 day", "86400s"], ["7 days", "604800s"]];

/** Each action: for which statuses it is offered, and what it does. */
export const OPERATOR_ACTIONS = {
  terminate: {
    label: "Terminate",
    method: "terminate_session",
    isOffered: (status) => status !== "terminated",
    danger: true,
    effects: () => [
      "All streams of the session are notified immediately, not at its next event.",
      "Further events are rejected, even after a restart of the service, until the session is reset.",
    ],
    pastTense: "terminated",
    note: notLiveNote,
  },
  snooze: {
    label: "Snooze",
    method: "snooze_session",
    isOffered: (status) => status === "active" || status === "looping",
    effects: () => [
      "Its verdicts are still reported, but marked as shadow: brokers do not act on them.",
      "It ends after the chosen time, or with a reset.",
    ],
    pastTense: "snoozed",
  },
  reset: {
    label: "Reset",
    method: "reset_session",
    isOffered: () => true,
    effects: (status) => [
      "The session's state is cleared: counts, loops, trends.",
      status === "terminated" ? "Its termination is lifted: the agent may continue." : "It starts from zero with its next event.",
    ],
    pastTense: "reset",
  },
};

/** What to say of a termination that stopped nothing. */
function notLiveNote(response) {
  const previous = format.status(response.previous_status);
  if (previous === "ended") return "The session had ended: a tombstone was written.";
  return previous === "" || previous === "unspecified" ? "No such session was live: a tombstone was written." : "";
}

/** Buttons for the actions on a session. `current` returns its latest state. */
export function buttons(current, page, onDone) {
  const status = format.status(current().status);
  return Object.entries(OPERATOR_ACTIONS)
    .filter(([name, action]) => page.isAllowed(name) && action.isOffered(status))
    .map(([name, action]) => el("button", { type: "button", class: action.danger ? "danger" : null, "data-action": name, on: { click: () => openDialog(action, current(), page.me, onDone) } }, `${action.label}…`));
}

/** Asks for a reason, then calls the service. */
function openDialog(action, session, me, onDone) {
  const status = format.status(session.status);
  const reason = el("textarea", { id: "reason", rows: 3, required: true, maxlength: 1000, "aria-describedby": "effects" });
  // A token names the operator. Without tokens, the operator enters a name.
  const name = me.name ? null : el("input", { id: "operator", autocomplete: "name", maxlength: 100, value: operator.get() });
  const duration = action.method === "snooze_session"
    ? el("select", { id: "duration" }, SNOOZE_DURATIONS.map(([label, value]) => el("option", { value, selected: value === "3600s" }, label)))
    : null;
  const errorNode = el("p", { class: "form-error", role: "alert" });
  const submit = el("button", { type: "submit", class: action.danger ? "danger" : "main" }, `${action.label} the session`);
  const dialog = el("dialog", { "aria-labelledby": "dialog-title" });
  const form = el("form", { method: "dialog", novalidate: true },
    el("h2", { id: "dialog-title" }, `${action.label} `, el("bdi", { class: "mono" }, sanitize(session.session_id)), "?"),
    el("ul", { id: "effects" }, action.effects(status).map((line) => el("li", null, line)), el("li", null, me.name ? `The action is recorded in the audit log with the reason and your name, ${me.name}.` : "The action is recorded in the audit log with your name and reason.")),
    el("p", { class: "muted" }, `Usage: ${format.cost(format.used(session))}; ${format.age(session.create_time)} old, ${status}.`),
    duration && field("Duration", duration),
    field("Reason (required)", reason),
    name && field("Your name, for the audit log", name),
    errorNode,
    el("footer", null, el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!reason.value.trim()) {
      setChildren(errorNode, "A reason is required.");
      reason.focus();
      return;
    }
    if (name) operator.set(name.value);
    submit.disabled = true;
    try {
      const request = { session_id: session.session_id, reason: reason.value.trim() };
      if (duration) request.duration = duration.value;
      const response = await call(action.method, request);
      dialog.close();
      const note = action.note?.(response) ?? "";
      announce(note || `The session was ${action.pastTense}.`);
      onDone(action, response.verdict, note);
    } catch (error) {
      setChildren(errorNode, `Refused: ${errorMessage(error)}.`);
    } finally {
      submit.disabled = false;
    }
  });
  dialog.append(form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  reason.focus();
}

function field(label, control) {
  return el("p", { class: "field" }, el("label", { for: control.id }, label), control);
}
