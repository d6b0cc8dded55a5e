// Operator actions on a session. Each dialog says what the action does, requires
// a reason, and shows the service's response.

import { call, operator, told } from "./api.js";
import { announce, el, fill, plain } from "./dom.js";
import * as words from "./words.js";

const SNOOZES = [["15 minutes", "900s"], ["1 hour", "3600s"], ["4 hours", "14400s"], ["1 day", "86400s"], ["7 days", "604800s"]];

/** Each action: for which statuses it is offered, and what it does. */
export const ACTS = {
  terminate: {
    label: "Terminate",
    method: "terminate_session",
    fits: (status) => status !== "terminated",
    danger: true,
    does: () => [
      "All streams of the session are notified immediately, not at its next event.",
      "Further events are rejected, even after a restart of the service, until the session is reset.",
    ],
    done: "terminated",
  },
  snooze: {
    label: "Snooze",
    method: "snooze_session",
    fits: (status) => status === "active" || status === "looping",
    does: () => [
      "Its verdicts are still reported, but marked as shadow: brokers do not act on them.",
      "It ends after the chosen time, or with a reset.",
    ],
    done: "snoozed",
  },
  reset: {
    label: "Reset",
    method: "reset_session",
    fits: () => true,
    does: (status) => [
      "The session's state is cleared: counts, loops, trends.",
      status === "terminated" ? "Its termination is lifted: the agent may continue." : "It starts from zero with its next event.",
    ],
    done: "reset",
  },
};

/** Buttons for the actions on a session. `current` returns its latest state. */
export function buttons(current, page, onDone) {
  const status = words.status(current().status);
  return Object.entries(ACTS)
    .filter(([name, act]) => page.may(name) && act.fits(status))
    .map(([name, act]) => el("button", { type: "button", class: act.danger ? "danger" : null, "data-act": name, on: { click: () => ask(act, current(), page.me, onDone) } }, `${act.label}…`));
}

/** Asks for a reason, then calls the service. */
function ask(act, session, me, onDone) {
  const status = words.status(session.status);
  const reason = el("textarea", { id: "reason", rows: 3, required: true, maxlength: 1000, "aria-describedby": "does" });
  // A token names the operator. Without tokens, the operator enters a name.
  const name = me.name ? null : el("input", { id: "operator", autocomplete: "name", maxlength: 100, value: operator.get() });
  const duration = act.method === "snooze_session"
    ? el("select", { id: "duration" }, SNOOZES.map(([label, value]) => el("option", { value, selected: value === "3600s" }, label)))
    : null;
  const refusal = el("p", { class: "refusal", role: "alert" });
  const submit = el("button", { type: "submit", class: act.danger ? "danger" : "main" }, `${act.label} the session`);
  const dialog = el("dialog", { "aria-labelledby": "act" });
  const form = el("form", { method: "dialog", novalidate: true },
    el("h2", { id: "act" }, `${act.label} `, el("bdi", { class: "mono" }, plain(session.session_id)), "?"),
    el("ul", { id: "does" }, act.does(status).map((line) => el("li", null, line)), el("li", null, me.name ? `The action is recorded in the audit log with the reason and your name, ${me.name}.` : "The action is recorded in the audit log with your name and reason.")),
    el("p", { class: "quiet" }, `Usage: ${words.cost(session.events, (session.usage?.input_tokens ?? 0) + (session.usage?.output_tokens ?? 0), session.usage?.cost_usd)}; ${words.age(session.create_time)} old, ${status}.`),
    duration && field("Duration", duration),
    field("Reason (required)", reason),
    name && field("Your name, for the audit log", name),
    refusal,
    el("footer", null, el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!reason.value.trim()) {
      fill(refusal, "A reason is required.");
      reason.focus();
      return;
    }
    if (name) operator.set(name.value);
    submit.disabled = true;
    try {
      const request = { session_id: session.session_id, reason: reason.value.trim() };
      if (duration) request.duration = duration.value;
      const answer = await call(act.method, request);
      dialog.close();
      announce(`The session was ${act.done}.`);
      onDone(act, answer.verdict);
    } catch (error) {
      fill(refusal, `Refused: ${told(error)}.`);
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
