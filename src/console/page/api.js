// Calls of the service. The token is kept until the tab is closed and sent with
// every call; there is no cookie, which a browser would send automatically.

const TOKEN = "unstuck.token";
const NAME = "unstuck.operator";

/** An error response of the service. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error.message || `HTTP status ${status}`);
    this.status = status;
    this.reason = error.reason ?? "";
    this.field = error.field ?? "";
  }
}

export const operator = {
  get: () => localStorage.getItem(NAME) ?? "",
  // Sent in a header, which allows only ASCII.
  set: (name) => localStorage.setItem(NAME, name.normalize("NFKD").replace(/[^ -~]/g, "").trim()),
};

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => sessionStorage.setItem(TOKEN, text),
  clear: () => sessionStorage.removeItem(TOKEN),
};

/** Dispatches `unauthorized` when the service requires a token. */
export const authEvents = new EventTarget();

/** Makes a call and returns the response with a streaming body. */
export async function post(method, body, options = {}) {
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
  try { error = JSON.parse(text); } catch { /* The body is plain text. */ }
  if (response.status === 401) authEvents.dispatchEvent(new Event("unauthorized"));
  throw new ApiError(response.status, error);
}

/** Makes a call and returns the parsed response. */
export async function call(method, body, options) {
  return (await post(method, body, options)).json();
}

/** The error message for a user. */
export function errorMessage(error) {
  if (error instanceof ApiError) return error.message;
  return error?.name === "AbortError" ? "" : "the service cannot be reached";
}
