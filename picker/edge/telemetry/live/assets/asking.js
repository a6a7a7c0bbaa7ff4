// Asking the picker, with a token where it wants one. The token stays in this tab.

import { $, put } from "./words.js";

const TOKEN_KEY = "picker-token";
let token = sessionStorage.getItem(TOKEN_KEY);

export function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

/** JSON of the picker; what it refuses is an error with its words. */
export async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
  if (response.status === 401) {
    await askForToken();
    return ask(path, options);
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok || answer === null) throw new Error(answer?.error ?? `the picker answered ${response.status}`);
  return answer;
}

let asking = null;

export function askForToken() {
  if (asking) return asking;
  const dialog = $("token");
  put($("token-refused"), token ? "This token was refused." : "");
  asking = new Promise((resolve) => {
    $("token-form").onsubmit = (event) => {
      event.preventDefault();
      token = $("token-value").value.trim();
      sessionStorage.setItem(TOKEN_KEY, token);
      $("token-value").value = "";
      asking = null;
      dialog.close();
      resolve();
    };
  });
  dialog.oncancel = (event) => event.preventDefault();  // without a token there is nothing to see
  dialog.showModal();
  return asking;
}
