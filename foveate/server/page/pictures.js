/**
 * Pictures between a file and a request. Owns reading files, measuring them, and the addresses under which this page
 * shows them. Promises that a picture is sent byte for byte as it was given: scaling is the server's business, and so
 * is refusing what it cannot read. Refuses to know conversations.
 */

import { newId } from "./dom.js";

/** As many as a request may have. */
export const MAX_IMAGES = 16;

const urls = new WeakMap();

/** The picture files among what was dropped, pasted or chosen. */
export function pictureFiles(list) {
  return Array.from(list ?? []).filter((file) => file.type.startsWith("image/"));
}

/** A picture record `{id, name, blob, width, height}`; width and height are null where the browser cannot read it. */
export async function readPicture(blob, name) {
  let size = { width: null, height: null };
  try {
    const bitmap = await createImageBitmap(blob);
    size = { width: bitmap.width, height: bitmap.height };
    bitmap.close();
  } catch {
    // Formats that the browser does not know may still be known to the server.
  }
  return { id: newId(), name: name || "picture", blob, ...size };
}

/** An address for showing a blob, the same one each time. */
export function urlOf(blob) {
  if (!urls.has(blob)) urls.set(blob, URL.createObjectURL(blob));
  return urls.get(blob);
}

/** The picture as a data URL. */
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
