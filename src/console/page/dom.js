// Makes nodes. Text only ever becomes text: there is no way here to make markup
// of a string, and the page's policy forbids it everywhere else.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: attributes, and `on` for listeners; `false` and `null` are left out. */
export function el(name, props, ...children) {
  return filled(document.createElement(name), props, children);
}

/** The same for drawings. */
export function svg(name, props, ...children) {
  return filled(document.createElementNS(SVG, name), props, children);
}

function filled(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else {
      node.setAttribute(key, value === true ? "" : value);
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Nobody reads more of one text, and a browser lays it out at once. */
const SAID_CHARS_MAX = 4000;
// Controls, and what turns the direction of writing or cannot be seen.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;

/** What an agent wrote, fit to be read: bounded, nothing invisible in it. */
export function plain(text) {
  const shown = text.length > SAID_CHARS_MAX ? `${text.slice(0, SAID_CHARS_MAX)}…` : text;
  return shown.replace(UNSEEN, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}

/** What an agent wrote. Its direction of writing stays its own. */
export function said(text, props) {
  return el("bdi", { ...props, class: `said ${props?.class ?? ""}` }, plain(text));
}

/** Puts new children in the place of the old ones. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Makes these the children, moving only what stands elsewhere: a node that stays keeps its focus, scroll and selection. */
export function arrange(parent, nodes) {
  const wanted = nodes.filter(Boolean);
  wanted.forEach((node, at) => {
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] ?? null);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

/** Remembers nodes by name, and makes one anew only where what it shows has changed. */
export class Nodes {
  #known = new Map();

  get(name, data, make) {
    const text = JSON.stringify(data);
    const known = this.#known.get(name);
    if (known && known.text === text) return known.node;
    const node = make();
    this.#known.set(name, { text, node });
    return node;
  }
}

/** Says something to those who do not see it. */
export function announce(text) {
  document.getElementById("said").textContent = text;
}

/** Runs after things have been quiet for a while, but not later than `most`. */
export function calmly(run, quiet = 250, most = 1000) {
  let timer = 0;
  let since = 0;
  return () => {
    const now = performance.now();
    since ||= now;
    clearTimeout(timer);
    timer = setTimeout(() => { since = 0; run(); }, Math.min(quiet, Math.max(0, since + most - now)));
  };
}
