// Elements of the page. Every text becomes a text node, so a name from the database is never HTML.

/** Return an element with attributes and children. A string child is text. A null child or attribute is left out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  setAttributes(made, attributes);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Return an element of SVG with attributes and children. */
export function svgElement(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

function setAttributes(made, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : String(value));
  }
}

/** Return the element with an id. */
export const byId = (id) => document.getElementById(id);

/** Set an element's text, only if it differs, so that a screen reader and a selection are left in peace. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Make the children of a list those of `items`, one each. Children of items that stay are kept, with their focus.
 * `keyOf` returns an item's key, `make` a new child, and `update` changes a child to show its item.
 */
export function reconcile(list, items, keyOf, make, update) {
  const kept = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let place = list.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = kept.get(key);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    kept.delete(key);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else list.insertBefore(child, place);
  }
  for (const child of kept.values()) child.remove();
}

/** Return a name from the database, isolated from the direction of the text around it. */
export const nameElement = (text) => element("bdi", { class: "name" }, text);
