package journal

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
)

// maxName is the longest file name that Linux file systems take (NAME_MAX).
const maxName = 255

// Key names an attachment: one interface of one container in one network.
type Key struct {
	Network     string
	ContainerID string
	IfName      string
}

// Validate reports, as an error that wraps [ErrInvalidKey], why k cannot be
// stored: a part that CNI does not allow (SPEC section 2, "Overview" of the
// parameters; checked by cni/pkg/utils), or one too long for a file name.
func (k Key) Validate() error {
	if err := utils.ValidateNetworkName(k.Network); err != nil {
		return fmt.Errorf("%w: network %q: %w", ErrInvalidKey, k.Network, err)
	}
	if err := utils.ValidateContainerID(k.ContainerID); err != nil {
		return fmt.Errorf("%w: container ID %q: %w", ErrInvalidKey, k.ContainerID, err)
	}
	if err := utils.ValidateInterfaceName(k.IfName); err != nil {
		return fmt.Errorf("%w: interface name %q: %w", ErrInvalidKey, k.IfName, err)
	}
	if len(k.Network) > maxName {
		return fmt.Errorf("%w: network name of %d bytes: at most %d can be stored", ErrInvalidKey, len(k.Network), maxName)
	}
	if n := len(k.name()); n > maxName {
		return fmt.Errorf("%w: container ID of %d bytes: at most %d can be stored with interface %s",
			ErrInvalidKey, len(k.ContainerID), maxName-1-len(k.IfName), k.IfName)
	}
	return nil
}

// String returns the path of the attachment's file below the store.
func (k Key) String() string { return k.Network + "/" + k.name() }

// name is the file name. The first '@' divides it: a container ID has none.
func (k Key) name() string { return k.ContainerID + "@" + k.IfName }

// parseName reads a file name back; ok is false for a file that is not ours.
func parseName(network, name string) (k Key, ok bool) {
	id, ifName, ok := strings.Cut(name, "@")
	k = Key{network, id, ifName}
	return k, ok && k.Validate() == nil
}
