// Package cuda runs plans on NVIDIA GPUs. The one idea: launch code writes launches into a Queue as plain data (kernel,
// grid, block, shared memory, arguments by name); a Stream sends them to a device, a Recorder writes them down as text,
// so what a GPU will run can be read and compared on a machine without one. Compile lowers a plan to launches op by op and
// captures them once; Do replays them.
//
// The driver is bound under the build tag gpu, through gorgonia.org/cu and a small cgo file for what cu lacks. A program
// built that way needs no CUDA to start: the driver is looked for at run time. Without the tag, or without a driver,
// Devices is empty and says why.
package cuda
