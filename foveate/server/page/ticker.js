/**
 * Time on the screen. Owns the one animation loop: whoever shows something that moves asks to be called until it says
 * so. Promises that nothing runs while nothing moves, and two calls a second for people who asked for less motion.
 */

const wanted = new Set();
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const CALM_MS = 500;
let last = -Infinity;
let scheduled = false;

/** Call `draw(now_ms)` for each frame until the returned function is called. */
export function everyFrame(draw) {
  wanted.add(draw);
  schedule();
  return () => wanted.delete(draw);
}

function schedule() {
  if (scheduled || wanted.size === 0) return;
  scheduled = true;
  requestAnimationFrame((now) => {
    scheduled = false;
    if (!calm.matches || now - last >= CALM_MS) {
      last = now;
      for (const draw of [...wanted]) draw(performance.now());
    }
    schedule();
  });
}
