// Elements from plain values. Text is always set as text: nothing here can turn data into HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. attributes: name -> value; null and false leave it out, on: {event: handler}. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, made like h(). */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else set(element, name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== false));
  return element;
}

/** Set one attribute, or remove it when the value is null or false; writes only what differs. */
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Set an element's text, only when it differs: a selection in it is not lost for nothing. */
export function say(element, text) {
  const shown = String(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Put new children into an element in place of the old. */
export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== false));
}

/** Show or hide an element. */
export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/**
 * Make a parent's children follow a list: one element per key, kept across updates so that focus,
 * selection and scroll stay. make(item) builds one, update(element, item) refreshes it.
 */
export function keyed(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let element = old.get(name);
    old.delete(name);
    if (!element) {
      element = make(item);
      element.dataset.key = name;
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const gone of old.values()) gone.remove();
}

/** A symbol of our own set, drawn in the colour of the text around it. */
export function icon(name, label = null) {
  const shape = s("svg", { class: `icon icon-${name}`, viewBox: "0 0 16 16", focusable: "false" });
  if (label) {
    set(shape, "role", "img");
    set(shape, "aria-label", label);
  } else set(shape, "aria-hidden", "true");
  for (const [tag, attributes] of ICONS[name]) shape.append(s(tag, attributes));
  return shape;
}

const line = (d) => ["path", { d, fill: "none", stroke: "currentColor", "stroke-width": 1.6, "stroke-linecap": "round", "stroke-linejoin": "round" }];
const area = (d) => ["path", { d, fill: "currentColor" }];
const ring = ["circle", { cx: 8, cy: 8, r: 5.2, fill: "none", stroke: "currentColor", "stroke-width": 1.6 }];
const ICONS = {
  ready: [["circle", { cx: 8, cy: 8, r: 5, fill: "currentColor" }]],
  training: [area("M4.5 2.5v11l9-5.5z")],
  measuring: [line("M2.5 11.5a5.5 5.5 0 0 1 11 0M8 11.5l2.6-3.6")],
  offline: [ring, line("M4.6 11.4l6.8-6.8")],
  pending: [ring, line("M8 5.2V8l2 1.6")],
  starting: [line("M8 2.8v2.4M8 10.8v2.4M2.8 8h2.4M10.8 8h2.4M4.3 4.3l1.7 1.7M10 10l1.7 1.7M4.3 11.7L6 10M10 6l1.7-1.7")],
  running: [area("M4.5 2.5v11l9-5.5z")],
  recovering: [line("M13 8a5 5 0 1 1-1.6-3.7M13 2.4v2.4h-2.4")],
  completed: [line("M3 8.6l3.2 3.2L13 4.6")],
  failed: [line("M4 4l8 8M12 4l-8 8")],
  cancelled: [["rect", { x: 4, y: 4, width: 8, height: 8, rx: 1, fill: "currentColor" }]],
  sun: [["circle", { cx: 8, cy: 8, r: 2.8, fill: "currentColor" }], line("M8 1.5v1.6M8 12.9v1.6M1.5 8h1.6M12.9 8h1.6M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M3.4 12.6l1.1-1.1M11.5 4.5l1.1-1.1")],
  moon: [area("M13.2 9.8A5.8 5.8 0 0 1 6.2 2.8a5.8 5.8 0 1 0 7 7z")],
  copy: [["rect", { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5, fill: "none", stroke: "currentColor", "stroke-width": 1.4 }], line("M10.5 3.5v-.3a.9.9 0 0 0-.9-.9H3.4a.9.9 0 0 0-.9.9v6.2c0 .5.4.9.9.9h.3")],
  warning: [line("M8 2.6L14 13H2zM8 6.6v3M8 11.3v.1")],
  chart: [line("M2.5 2.5v11h11M4.8 6.2l2.4 3 2.2-1.4 3.3 3.4")],
  down: [line("M8 3v9.5M4.2 8.8L8 12.6l3.8-3.8")],
};
