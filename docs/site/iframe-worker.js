// A page that is opened from disk may start no worker, and search is one. There, the script of a worker runs
// in a hidden frame of the page instead. Served by anything else, browsers have workers of their own.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const base = new URL(url, document.baseURI)
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => {
        const message = new MessageEvent("message", { data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      const load = source => new Promise((done, failed) => {
        const script = this.inner.document.createElement("script")
        script.src = new URL(source, base).href
        script.onload = done
        script.onerror = () => failed(new Error(`cannot load ${source}`))
        this.inner.document.body.append(script)
      })
      this.inner.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.started = load(base)
    }
    postMessage(data) {
      this.started.then(() => {
        this.inner.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }))
      })
    }
    terminate() {
      this.inner.frameElement.remove()
    }
  }
}
