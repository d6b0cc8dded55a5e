// Calls of the service. A token is kept for as long as the tab is open and goes
// with every call; there is no cookie that a browser would send by itself.

const TOKEN = "unstuck.token";
const NAME = "unstuck.operator";

/** Why the service did not do what was asked. */
export class Refused extends Error {
  constructor(status, error) {
    super(error.message || `the service answered with ${status}`);
    this.status = status;
    this.reason = error.reason ?? "";
    this.field = error.field ?? "";
  }
}

export const operator = {
  get: () => localStorage.getItem(NAME) ?? "",
  // It goes into a header, which takes no other letters.
  set: (name) => localStorage.setItem(NAME, name.normalize("NFKD").replace(/[^ -~]/g, "").trim()),
};

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => sessionStorage.setItem(TOKEN, text),
  clear: () => sessionStorage.removeItem(TOKEN),
};

/** Tells when the service wants to know who asks. */
export const doors = new EventTarget();

/** Asks, and gives the response as it comes in. */
export async function open(method, body, options = {}) {
  const headers = { "content-type": "application/json", ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  if (operator.get()) headers["unstuck-operator"] = operator.get();
  const response = await fetch(`/api/${method}`, {
    method: "POST",
    headers,
    body: JSON.stringify(body ?? {}),
    signal: options.signal,
    cache: "no-store",
  });
  if (response.ok) return response;
  const text = await response.text();
  let error = { message: text.trim() };
  try { error = JSON.parse(text); } catch { /* It was said in plain words. */ }
  if (response.status === 401) doors.dispatchEvent(new Event("closed"));
  throw new Refused(response.status, error);
}

/** Asks, and gives the answer. */
export async function call(method, body, options) {
  return (await open(method, body, options)).json();
}

/** What went wrong, for a person. */
export function told(error) {
  if (error instanceof Refused) return error.message;
  return error?.name === "AbortError" ? "" : "the service cannot be reached";
}
