// Keeps the end of what grows in view, as long as its reader is there.

/** So near to the end a reader is there, in pixels. */
const NEAR_END = 40;

/** Scrolls an element to its end whenever its content or its size changes, unless one has scrolled up. */
export class Follower {
  constructor(box) {
    this.box = box;
    this.isAtEnd = true;
    box.addEventListener("scroll", () => {
      this.isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
    });
    new MutationObserver(() => this.follow()).observe(box, { childList: true, subtree: true, characterData: true });
    // A button that is shown below it takes some of its height.
    new ResizeObserver(() => this.follow()).observe(box);
  }

  follow() {
    if (this.isAtEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  /** Go to the end, wherever one has scrolled to. */
  toEnd() {
    this.isAtEnd = true;
    this.follow();
  }
}
