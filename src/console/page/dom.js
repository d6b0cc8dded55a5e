// Creates nodes. A string only becomes text: nothing here parses markup, and the
// page's security policy forbids it everywhere else. Invisible characters are
// escaped in every text and attribute that is made here, tooltips included.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element. `props`: attributes, and `on` for listeners; `false` and `null` are skipped. */
export function el(name, props, ...children) {
  return build(document.createElement(name), props, children);
}

/** The same for SVG. */
export function svg(name, props, ...children) {
  return build(document.createElementNS(SVG, name), props, children);
}

function build(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else {
      node.setAttribute(key, value === true ? "" : VERBATIM.has(key) ? value : escapeInvisible(String(value)));
    }
  }
  node.append(...nodesOf(children));
  return node;
}

/** Attributes that are read back by the page: a URL is encoded, a filter is sent as it is. */
const VERBATIM = new Set(["href", "value"]);

/** Children as nodes and harmless strings, without the skipped ones. */
function nodesOf(children) {
  return children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : escapeInvisible(String(child))));
}

/** Bounds the layout time of one text. */
const TEXT_CHARS_MAX = 4000;
// Control characters, bidirectional marks and invisible characters: those of
// src/domain/sanitize.rs, and line breaks other than \n.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}\u{e0100}-\u{e01ef}]/gu;

/** The text with invisible characters escaped. */
function escapeInvisible(text) {
  return text.replace(INVISIBLE, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}

/** Untrusted text, bounded, with invisible characters escaped. */
export function sanitize(text) {
  return escapeInvisible(text.length > TEXT_CHARS_MAX ? `${text.slice(0, TEXT_CHARS_MAX)}…` : text);
}

/** An element with untrusted text, isolated from the surrounding text direction. */
export function untrusted(text, props) {
  return el("bdi", { ...props, class: `untrusted ${props?.class ?? ""}` }, sanitize(text));
}

/** Replaces the children. */
export function setChildren(node, ...children) {
  node.replaceChildren(...nodesOf(children));
  return node;
}

/** Makes these the children and moves only nodes at another position: an unmoved node keeps its focus, scroll position and selection. */
export function updateChildren(parent, nodes) {
  const wanted = nodes.filter(Boolean);
  wanted.forEach((node, at) => {
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] ?? null);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

/** Caches nodes by name. A node is recreated only if its data has changed. */
export class NodeCache {
  #entries = new Map();

  get(name, data, make) {
    const text = JSON.stringify(data);
    const known = this.#entries.get(name);
    if (known && known.text === text) return known.node;
    const node = make();
    this.#entries.set(name, { text, node });
    return node;
  }
}

/** Announces a text to screen readers. */
export function announce(text) {
  document.getElementById("announcer").textContent = sanitize(text);
}

/** Debounces `run` by `delay` milliseconds, but delays it by at most `maxDelay`. */
export function debounce(run, delay = 250, maxDelay = 1000) {
  let timer = 0;
  let since = 0;
  return () => {
    const now = performance.now();
    since ||= now;
    clearTimeout(timer);
    timer = setTimeout(() => { since = 0; run(); }, Math.min(delay, Math.max(0, since + maxDelay - now)));
  };
}
