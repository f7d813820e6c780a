// Renews the living part of a page every few seconds while somebody looks at it, and puts the cursor into the search field
// when '/' is pressed. Without it a living page reloads itself.
"use strict";

const EVERY = 3000;

async function renew() {
  const live = document.querySelector("[data-live]");
  if (live === null || document.hidden) return;
  let fresh;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  } catch {
    return; // the console is gone; what it showed last stays
  }
  if (fresh === null || fresh.innerHTML === live.innerHTML) return;
  const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  for (const open of live.querySelectorAll("details[open][id]")) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  live.replaceChildren(...fresh.childNodes);
  if (focused !== null) [...live.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

function search(event) {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select") !== null) return; // somebody types
  event.preventDefault();
  document.querySelector("#search")?.select();
}

document.addEventListener("keydown", search);
setInterval(renew, EVERY);
